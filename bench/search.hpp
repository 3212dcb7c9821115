// Search: finds the fastest of many choices in two rounds. Only the first round measures all.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace attn::bench {

// One choice on one workload.
struct Trial {
  double seconds = 0.0;
  std::string problem;  // why the choice is rejected (wrong result, error); empty if it is not
};
// `choice` and `workload` are indices; later rounds measure longer.
using Measure = std::function<Trial(std::size_t choice, std::size_t workload, int round)>;

struct Choice {
  // Per workload, from the last round that measured it; 0: not measured.
  std::vector<double> seconds;
  std::string problem;  // of the first workload with one
};

struct Found {
  std::vector<Choice> choices;
  std::size_t best = 0;  // choice 0 if no other is faster by more than least_gain
  double gain = 1.0;     // geometric mean of choice 0's seconds over the best's
};

inline constexpr std::size_t kFinalists = 6;
inline constexpr double kLeastGain = 1.01;        // smaller gains are noise
inline constexpr double kLeastGainOnHost = 1.03;  // other programs use the processor too

// Choice 0 is the current one. Round 0: every choice on workload 0. Round 1: choice 0 and the
// fastest others on all workloads. A choice with a problem is dropped. If choice 0 has a problem,
// the best of the others wins with gain 0; if all have one, best is 0.
Found search(std::size_t num_choices, std::size_t num_workloads, const Measure& measure,
             double least_gain = kLeastGain);

}  // namespace attn::bench
