// Diagonal and band, against the definition key by key.
#include "core/visibility.hpp"

#include <gtest/gtest.h>

namespace attn::core {
namespace {

constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();

TEST(Visibility, Diagonals) {
  EXPECT_EQ(diagonal_of(Diagonal::bottom_right, 1, 3, 10), 7);
  EXPECT_EQ(diagonal_of(Diagonal::bottom_right, 1, 10, 3), -7);
  EXPECT_EQ(diagonal_of(Diagonal::top_left, 1, 3, 10), 0);
  EXPECT_EQ(diagonal_of(Diagonal::explicit_value, 36, 3, 10), 36);
  Arguments arguments;
  arguments.origin.q = 100;
  arguments.origin.kv = 64;
  EXPECT_EQ(explicit_diagonal(arguments), 36);
  arguments.diag = -5;
  EXPECT_EQ(explicit_diagonal(arguments), -5);
}

TEST(Visibility, BandIsTheDefinition) {
  const std::optional<std::int64_t> windows[] = {std::nullopt, 0, 2};
  for (const bool causal : {false, true}) {
    for (const auto& left : windows) {
      for (const auto& right : windows) {
        Problem problem;
        problem.causal = causal;
        problem.window_left = left;
        problem.window_right = right;
        for (std::int64_t diag = -9; diag <= 9; ++diag) {
          for (std::int64_t i = 0; i < 6; ++i) {
            const KeyRange range = keys_in(problem, i, diag, 7);
            for (std::int64_t j = 0; j < 7; ++j) {
              const bool visible = (!causal || j <= i + diag) && (!left || j >= i + diag - *left) &&
                                   (!right || j <= i + diag + *right);
              EXPECT_EQ(visible, j >= range.begin && j < range.end)
                  << causal << " i " << i << " j " << j << " diag " << diag;
            }
          }
        }
      }
    }
  }
}

TEST(Visibility, ExtremesSaturate) {
  EXPECT_EQ(saturating_add(kMax, 1), kMax);
  EXPECT_EQ(saturating_add(kMin, -1), kMin);
  EXPECT_EQ(saturating_add(kMax, kMin), -1);
  Problem problem;
  problem.causal = true;
  problem.window_left = kMax;
  problem.window_right = kMax;
  EXPECT_TRUE(keys_in(problem, 5, kMin, 10).empty());
  const KeyRange all = keys_in(problem, 5, kMax, 10);
  EXPECT_LE(all.begin, 5);
  EXPECT_EQ(all.end, 10);
}

TEST(Visibility, LengthsAreClamped) {
  EXPECT_EQ(clamp_length(-4, 10), 0);
  EXPECT_EQ(clamp_length(4, 10), 4);
  EXPECT_EQ(clamp_length(40, 10), 10);
}

}  // namespace
}  // namespace attn::core
