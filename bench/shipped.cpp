// Implements shipped.hpp.
#include "bench/shipped.hpp"

#include <unordered_map>
#include <unordered_set>

#include "bench/cells.hpp"
#include "harness/case.hpp"

namespace attn::bench {

std::vector<CacheRequest::Call> shipped_calls() {
  std::vector<CacheRequest::Call> calls;
  std::unordered_map<Pass, std::unordered_set<Problem>> known;
  const auto add = [&](Pass pass, const Problem& problem) {
    if (problem.dtype != DType::f16 && problem.dtype != DType::bf16) return;
    if (known[pass].insert(problem).second) calls.push_back({pass, problem});
  };
  for (const char* suite : {"all", "pair"}) {
    for (const Cell& cell : cells(suite, {"f16", "bf16"}, {}, Device::cuda)) {
      add(cell.pass, cell.problem);
      if (cell.against != nullptr) add(cell.against->pass, cell.against->problem);
    }
  }
  // f8 has no other cells: the case list would add a Config for every option.
  for (const Cell& cell : cells("plain", {"f8e4m3"}, {"fwd"}, Device::cuda)) {
    calls.push_back({cell.pass, cell.problem});
  }
  harness::Filter filter;
  filter.every_type = true;
  for (const harness::Case& c : harness::case_list(filter)) add(c.pass, c.problem);
  return calls;
}

}  // namespace attn::bench
