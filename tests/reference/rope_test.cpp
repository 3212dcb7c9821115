// Rotary embedding: analytic values, the inverse, positions up to 2^20, packed rows, tables.
#include <gtest/gtest.h>

#include <cmath>

#include "compare.hpp"
#include "memory.hpp"
#include "reference/reference.hpp"
#include "sample.hpp"

namespace attn::reference::test {
namespace {

TEST(Rope, ByHand) {
  Memory m;
  RopeArguments r;
  r.x = m.f64({1, 2, 1, 5}, {1, 2, 3, 4, 5, 1, 2, 3, 4, 5});
  r.out = m.filled({1, 2, 1, 5}, kNaN);
  r.rot_dim = 4;
  r.base = 10000.0;  // angles position * 1 and position * 0.01
  r.style = Rope::half;
  ASSERT_EQ(rope(r), "");
  const double c = std::cos(1.0), s = std::sin(1.0), c2 = std::cos(0.01), s2 = std::sin(0.01);
  EXPECT_TRUE(near(
      values_of(r.out),
      Numbers{1, 2, 3, 4, 5, c - 3 * s, 2 * c2 - 4 * s2, s + 3 * c, 2 * s2 + 4 * c2, 5}, 1e-15));
  r.style = Rope::interleaved;
  ASSERT_EQ(rope(r), "");
  EXPECT_TRUE(near(
      values_of(r.out),
      Numbers{1, 2, 3, 4, 5, c - 2 * s, s + 2 * c, 3 * c2 - 4 * s2, 3 * s2 + 4 * c2, 5}, 1e-15));
}

TEST(Rope, InverseInPlaceGivesBack) {
  std::mt19937_64 random(41);
  Numbers values;
  for (int n = 0; n < 2 * 6 * 3 * 8; ++n) values.push_back(uniform(random, -2.0, 2.0));
  for (const Rope style : {Rope::half, Rope::interleaved}) {
    Memory m;
    RopeArguments r;
    r.x = r.out = m.f64({2, 6, 3, 8}, values);
    r.style = style;
    r.rot_dim = 6;
    r.pos_offset = 1000;
    ASSERT_EQ(rope(r), "");
    EXPECT_FALSE(near(values_of(r.out), values, 0.1));
    r.inverse = true;
    ASSERT_EQ(rope(r), "");
    EXPECT_TRUE(near(values_of(r.out), values, 1e-14));
  }
}

// Expected: (cos 1 + i sin 1)^position by repeated squaring in long double, independent of the
// angle's computation; and the slowest pair, which has a known angle.
TEST(Rope, PositionsUpToTwoToTheTwenty) {
  for (const std::int32_t position : {1, 12345, 999983, 1 << 20}) {
    long double re = 1.0L, im = 0.0L, base_re = std::cos(1.0L), base_im = std::sin(1.0L);
    for (std::int32_t left = position; left > 0; left /= 2) {
      if (left % 2 == 1) {
        const long double next = re * base_re - im * base_im;
        im = re * base_im + im * base_re;
        re = next;
      }
      const long double next = base_re * base_re - base_im * base_im;
      base_im = 2 * base_re * base_im;
      base_re = next;
    }
    Memory m;
    RopeArguments r;
    r.x = m.f64({1, 1, 1, 4}, {1.0, 1.0, 0.0, 0.0});
    r.out = m.filled({1, 1, 1, 4}, kNaN);
    r.positions = m.integers({1, 1}, {position});
    ASSERT_EQ(rope(r), "");
    const Numbers out = values_of(r.out);
    EXPECT_TRUE(std::abs(out[0] - static_cast<double>(re)) <= 1e-9) << position;
    EXPECT_TRUE(std::abs(out[2] - static_cast<double>(im)) <= 1e-9) << position;
    EXPECT_TRUE(std::abs(out[1] - std::cos(position / 100.0)) <= 1e-9) << position;
    EXPECT_TRUE(std::abs(out[3] - std::sin(position / 100.0)) <= 1e-9) << position;
  }
}

TEST(Rope, PackedRowsCountFromTheirStart) {
  Memory m;
  RopeArguments r;
  r.x = m.f64({4, 1, 2}, {1, 0, 1, 0, 1, 0, 1, 0});
  r.out = m.filled({4, 1, 2}, kNaN);
  r.cu_len = m.integers({4}, {0, 1, 1, 4});  // documents of 1, 0 and 3 rows
  r.pos_offset = 2;
  ASSERT_EQ(rope(r), "");
  Numbers expected;
  for (const double position : {2.0, 2.0, 3.0, 4.0}) {
    expected.push_back(std::cos(position));
    expected.push_back(std::sin(position));
  }
  EXPECT_TRUE(near(values_of(r.out), expected, 1e-15));
}

TEST(Rope, TablesAreClamped) {
  Memory m;
  RopeArguments r;
  r.x = m.f64({1, 3, 1, 2}, {1, 0, 1, 0, 1, 0});
  r.out = m.filled({1, 3, 1, 2}, kNaN);
  r.cos = m.f64({2, 1}, {0.5, 0.25});
  r.sin = m.f64({2, 1}, {5.0, 7.0});
  r.positions = m.integers({1, 3}, {-4, 1, 900});
  ASSERT_EQ(rope(r), "");
  EXPECT_TRUE(same(values_of(r.out), Numbers{0.5, 5.0, 0.25, 7.0, 0.25, 7.0}));
}

// Rope inside attention equals rope before attention; its gradient is attention's gradient, rotated
// back.
TEST(Rope, InsideAttentionEqualsBefore) {
  for (const char* name : {"rope_half", "rope_interleaved", "rope_positions"}) {
    Setting inside_setting = small_setting();
    inside_setting.problem.causal = true;
    Setting before_setting = inside_setting;
    for (const Option& option : options()) {
      if (option.name == name) option.apply(inside_setting);
    }
    Sample inside(inside_setting, 51);
    Sample before(before_setting, 51);
    RopeArguments r;
    r.style = inside.problem.rope;
    r.rot_dim = inside.problem.rot_dim;
    r.base = inside.arguments.rope_base;
    RopeArguments r_q = r;
    r_q.positions = inside.arguments.rope_pos_q;
    r_q.pos_offset = inside.arguments.rope_pos_offset + 2;  // diag = 7 - 5
    RopeArguments r_k = r;
    r_k.positions = inside.arguments.rope_pos_k;
    r_k.pos_offset = inside.arguments.rope_pos_offset;
    r_q.x = r_q.out = before.arguments.q;
    r_k.x = r_k.out = before.arguments.k;
    ASSERT_EQ(rope(r_q), "");
    ASSERT_EQ(rope(r_k), "");
    ASSERT_EQ(inside.run_forward(), "");
    ASSERT_EQ(before.run_forward(), "");
    EXPECT_TRUE(near(inside.o, before.o, 1e-14)) << name;
    ASSERT_EQ(inside.run_backward(), "");
    ASSERT_EQ(before.run_backward(), "");
    r_q.inverse = r_k.inverse = true;
    r_q.x = r_q.out = before.arguments.dq;
    r_k.x = r_k.out = before.arguments.dk;
    ASSERT_EQ(rope(r_q), "");
    ASSERT_EQ(rope(r_k), "");
    EXPECT_TRUE(near(inside.dq, before.dq, 1e-14)) << name;
    EXPECT_TRUE(near(inside.dk, before.dk, 1e-14)) << name;
  }
}

}  // namespace
}  // namespace attn::reference::test
