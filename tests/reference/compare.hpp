// Comparisons that fail for NaN.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>

namespace attn::reference::test {

// True if every element is within `tolerance` times the largest expected magnitude (at least
// `least`).
inline ::testing::AssertionResult near(std::span<const double> found,
                                       std::span<const double> expected, double tolerance,
                                       double least = 1e-3) {
  if (found.size() != expected.size()) {
    return ::testing::AssertionFailure() << found.size() << " elements, not " << expected.size();
  }
  double scale = least;
  for (const double value : expected) scale = std::max(scale, std::abs(value));
  for (std::size_t e = 0; e < found.size(); ++e) {
    if (!(std::abs(found[e] - expected[e]) <= tolerance * scale)) {
      return ::testing::AssertionFailure()
             << "element " << e << " of " << found.size() << ": found " << found[e] << ", expected "
             << expected[e] << ", largest " << scale;
    }
  }
  return ::testing::AssertionSuccess();
}

// Equality, with NaN equal to NaN.
inline ::testing::AssertionResult same(std::span<const double> found,
                                       std::span<const double> expected) {
  if (found.size() != expected.size()) {
    return ::testing::AssertionFailure() << found.size() << " elements, not " << expected.size();
  }
  for (std::size_t e = 0; e < found.size(); ++e) {
    const bool both_nan = std::isnan(found[e]) && std::isnan(expected[e]);
    if (!both_nan && !(found[e] == expected[e])) {
      return ::testing::AssertionFailure()
             << "element " << e << ": found " << found[e] << ", expected " << expected[e];
    }
  }
  return ::testing::AssertionSuccess();
}

}  // namespace attn::reference::test
