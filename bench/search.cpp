// Implements search.hpp.
#include "bench/search.hpp"

#include <algorithm>
#include <cmath>

namespace attn::bench {
namespace {

// Geometric mean of a's seconds over b's.
double geometric_mean(const Choice& a, const Choice& b) {
  double sum = 0.0;
  for (std::size_t n = 0; n < a.seconds.size(); ++n) sum += std::log(a.seconds[n] / b.seconds[n]);
  return std::exp(sum / static_cast<double>(a.seconds.size()));
}

}  // namespace

Found search(std::size_t num_choices, std::size_t num_workloads, const Measure& measure,
             double least_gain) {
  Found found;
  found.choices.resize(num_choices);
  const auto run = [&](std::size_t choice, std::size_t workload, int round) {
    Choice& one = found.choices[choice];
    if (!one.problem.empty()) return;
    const Trial trial = measure(choice, workload, round);
    one.problem = trial.problem;
    one.seconds[workload] = trial.seconds;
    if (one.problem.empty() && !(trial.seconds > 0.0)) one.problem = "was not measured";
  };
  std::vector<std::size_t> others;
  for (std::size_t choice = 0; choice < num_choices; ++choice) {
    found.choices[choice].seconds.assign(num_workloads, 0.0);
    run(choice, 0, 0);
    if (choice > 0 && found.choices[choice].problem.empty()) others.push_back(choice);
  }
  std::sort(others.begin(), others.end(), [&](std::size_t a, std::size_t b) {
    return found.choices[a].seconds[0] < found.choices[b].seconds[0];
  });
  others.resize(std::min(others.size(), kFinalists));
  // Workload by workload, so that compared choices are measured close in time.
  for (std::size_t workload = 0; workload < num_workloads; ++workload) {
    run(0, workload, 1);
    for (const std::size_t choice : others) run(choice, workload, 1);
  }
  const Choice& now = found.choices[0];
  const bool stands = now.problem.empty();
  found.gain = stands ? least_gain : 0.0;
  const Choice* best = nullptr;
  for (const std::size_t choice : others) {
    const Choice& one = found.choices[choice];
    if (!one.problem.empty()) continue;
    const bool better = stands ? geometric_mean(now, one) > found.gain
                               : best == nullptr || geometric_mean(*best, one) > 1.0;
    if (!better) continue;
    best = &one;
    found.best = choice;
    if (stands) found.gain = geometric_mean(now, one);
  }
  if (best == nullptr) found.gain = stands ? 1.0 : 0.0;
  return found;
}

}  // namespace attn::bench
