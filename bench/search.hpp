// Search: the fastest of many choices, in two rounds, of which only the first measures all of them.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace attn::bench {

// One choice on one workload.
struct Trial {
  double seconds = 0.0;
  std::string problem;  // why it can't be taken (a wrong result, an error); empty: it can
};
// `choice` and `workload` are indices; a later round is longer.
using Measure = std::function<Trial(std::size_t choice, std::size_t workload, int round)>;

struct Choice {
  std::vector<double> seconds;  // of each workload, of the last round it was in; 0: not measured
  std::string problem;          // of the first workload where it had one
};

struct Found {
  std::vector<Choice> choices;
  std::size_t best = 0;  // choice 0 where no other is faster by more than kLeastGain
  double gain = 1.0;     // geometric mean of choice 0's seconds over the best's
};

inline constexpr std::size_t kFinalists = 6;
inline constexpr double kLeastGain = 1.01;  // less is noise

// Choice 0 is what stands now. Round 0: every choice on workload 0. Round 1: choice 0 and the
// fastest others on all workloads. A choice with a problem is out; where choice 0 has one, the best
// of the others is taken with gain 0, and where all have, best is 0.
Found search(std::size_t num_choices, std::size_t num_workloads, const Measure& measure);

}  // namespace attn::bench
