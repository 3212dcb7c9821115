// Timer: the median of many calls.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <vector>

namespace attn::bench {

inline double seconds_of(const std::function<void()>& call) {
  const auto start = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

inline double median(std::vector<double> values) {
  if (values.empty()) return 0.0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Calls until the time budget is used, at least `least` times; appends the seconds of each to
// `out`.
inline void sample(const std::function<void()>& call, double budget, int least,
                   std::vector<double>& out) {
  double spent = 0.0;
  for (int count = 0; count < least || spent < budget; ++count) {
    out.push_back(seconds_of(call));
    spent += out.back();
  }
}

}  // namespace attn::bench
