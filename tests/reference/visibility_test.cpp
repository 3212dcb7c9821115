// Visible keys, checked by hand: all scores are 0 and v_j = 2^j, so o * exp(lse) is the set of
// visible keys in binary.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "tiny.hpp"

namespace attn::reference::test {
namespace {

using Rows = std::vector<unsigned>;

// 3 queries, 5 keys; key j is bit j.
struct Sight : Tiny {
  Sight() : Tiny({0.0, 0.0, 0.0}, Numbers(5, 0.0), {1.0, 2.0, 4.0, 8.0, 16.0}) {}

  Rows seen() {
    EXPECT_EQ(run_forward(), "");
    Rows rows;
    for (std::size_t i = 0; i < 3; ++i) {
      const double keys = std::round(std::exp(lse()[i]));
      const double bits = o()[i] * keys;
      EXPECT_NEAR(bits, std::round(bits), 1e-12);
      rows.push_back(static_cast<unsigned>(std::lround(bits)));
      EXPECT_EQ(keys, std::popcount(rows.back()));
    }
    return rows;
  }
};

TEST(Visibility, Everything) {
  EXPECT_EQ(Sight().seen(), (Rows{0b11111, 0b11111, 0b11111}));
}

TEST(Visibility, Causal) {
  Sight s;
  s.problem.causal = true;
  EXPECT_EQ(s.seen(), (Rows{0b00111, 0b01111, 0b11111}));
  s.problem.diagonal = Diagonal::top_left;
  EXPECT_EQ(s.seen(), (Rows{0b00001, 0b00011, 0b00111}));
  s.problem.diagonal = Diagonal::explicit_value;
  s.arguments.diag = -1;
  EXPECT_EQ(s.seen(), (Rows{0b00000, 0b00001, 0b00011}));
  s.arguments.diag = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(s.seen(), (Rows{0b11111, 0b11111, 0b11111}));
  s.arguments.diag = std::numeric_limits<std::int64_t>::min();
  EXPECT_EQ(s.seen(), (Rows{0, 0, 0}));
  s.arguments.diag.reset();
  s.arguments.origin = {0, 0, 12, 11, 0};
  EXPECT_EQ(s.seen(), (Rows{0b00011, 0b00111, 0b01111}));
}

TEST(Visibility, Window) {
  Sight s;
  s.problem.diagonal = Diagonal::top_left;
  s.problem.window_left = 1;
  EXPECT_EQ(s.seen(), (Rows{0b11111, 0b11111, 0b11110}));
  s.problem.window_right = 0;
  EXPECT_EQ(s.seen(), (Rows{0b00001, 0b00011, 0b00110}));
  s.problem.window_left.reset();
  s.problem.window_right = 2;
  EXPECT_EQ(s.seen(), (Rows{0b00111, 0b01111, 0b11111}));
  s.problem.causal = true;  // independent of the window
  EXPECT_EQ(s.seen(), (Rows{0b00001, 0b00011, 0b00111}));
  s.problem.causal = false;
  s.problem.window_left = s.problem.window_right = std::numeric_limits<std::int64_t>::max();
  s.problem.diagonal = Diagonal::explicit_value;
  s.arguments.diag = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(s.seen(), (Rows{0b11111, 0b11110, 0b11100}));
}

TEST(Visibility, KvRanges) {
  Sight s;
  s.problem.kv_begin = true;
  s.arguments.kv_begin = s.memory.integers({1, 3}, {-4, 2, 9});
  EXPECT_EQ(s.seen(), (Rows{0b11111, 0b11100, 0}));
  s.problem.kv_end = true;
  s.arguments.kv_end = s.memory.integers({1, 3}, {2, 4, 100});
  EXPECT_EQ(s.seen(), (Rows{0b00011, 0b01100, 0}));
}

TEST(Visibility, Mask) {
  Sight s;
  s.problem.mask = {true, false, false, true, true};
  s.arguments.mask = s.memory.bytes({1, 1, 3, 5}, {1, 0, 0, 0, 255, 0, 0, 0, 0, 0, 1, 2, 3, 4, 0});
  EXPECT_EQ(s.seen(), (Rows{0b10001, 0, 0b01111}));
  s.problem.mask.q = false;  // one mask row for all queries
  s.arguments.mask = s.memory.bytes({1, 1, 1, 5}, {0, 1, 0, 1, 0});
  EXPECT_EQ(s.seen(), (Rows{0b01010, 0b01010, 0b01010}));
}

TEST(Visibility, Lengths) {
  Sight s;
  s.problem.lengths_kv = true;
  s.arguments.len_kv = s.memory.integers({1}, {4});
  s.problem.causal = true;
  EXPECT_EQ(s.seen(), (Rows{0b00011, 0b00111, 0b01111}));  // the sequence's own bottom right
  s.arguments.len_kv = s.memory.integers({1}, {1000});     // clamped
  EXPECT_EQ(s.seen(), (Rows{0b00111, 0b01111, 0b11111}));
  s.arguments.len_kv = s.memory.integers({1}, {-7});
  EXPECT_EQ(s.seen(), (Rows{0, 0, 0}));
  s.arguments.len_kv = s.memory.integers({1}, {4});
  s.problem.lengths_q = true;
  s.arguments.len_q = s.memory.integers({1}, {2});
  EXPECT_EQ(s.seen(), (Rows{0b00111, 0b01111, 0}));
  EXPECT_EQ(s.lse()[2], -kInf);
}

TEST(Visibility, Pages) {
  Sight s;
  s.problem.page_size = 2;
  s.arguments.k = s.memory.filled({4, 2, 1, 1}, 0.0);
  // Key 0 is in page 3, key 2 in page 0, key 4 in page 1; unused slots hold NaN.
  s.arguments.v = s.memory.f64({4, 2, 1, 1}, {4.0, 8.0, 16.0, kNaN, kNaN, kNaN, 1.0, 2.0});
  s.arguments.block_table = s.memory.integers({1, 3}, {3, 0, 1});
  s.problem.causal = true;
  EXPECT_EQ(s.seen(), (Rows{0b00111, 0b01111, 0b11111}));
  for (const std::int32_t missing : {-1, 4, 1 << 30}) {  // hidden, but still counted by diag
    s.arguments.block_table = s.memory.integers({1, 3}, {3, missing, 1});
    EXPECT_EQ(s.seen(), (Rows{0b00011, 0b00011, 0b10011}));
  }
}

TEST(Visibility, PackedDocuments) {
  Sight s;
  // Documents of 1 and 2 queries, of 2 and 3 keys; i and j are local to them.
  s.problem.batch = 2;
  s.problem.layout_q = s.problem.layout_kv = Layout::packed;
  s.problem.total_q = 3;
  s.problem.total_kv = 5;
  Arguments& a = s.arguments;
  a.q = s.memory.filled({3, 1, 1}, 0.0);
  a.k = s.memory.filled({5, 1, 1}, 0.0);
  a.v = s.memory.f64({5, 1, 1}, {1.0, 2.0, 4.0, 8.0, 16.0});
  a.o = s.memory.filled({3, 1, 1}, 777.0);
  a.lse = s.memory.filled({1, 3}, 777.0);
  a.cu_len_q = s.memory.integers({3}, {0, 1, 3});
  a.cu_len_kv = s.memory.integers({3}, {0, 2, 5});
  EXPECT_EQ(s.seen(), (Rows{0b00011, 0b11100, 0b11100}));
  s.problem.causal = true;
  EXPECT_EQ(s.seen(), (Rows{0b00011, 0b01100, 0b11100}));
  s.problem.kv_begin = true;
  a.kv_begin = s.memory.integers({3}, {1, 1, 0});
  EXPECT_EQ(s.seen(), (Rows{0b00010, 0b01000, 0b11100}));
  a.cu_len_q = s.memory.integers({3}, {-5, 1, 1 << 30});  // clamped to the tensor
  a.cu_len_kv = s.memory.integers({3}, {0, 2, 1 << 30});
  EXPECT_EQ(s.seen(), (Rows{0b00010, 0b01000, 0b11100}));
}

TEST(Visibility, GroupedHeads) {
  Memory m;
  Problem p;
  p.dtype = DType::f64;
  p.heads_q = 6;
  p.heads_kv = 3;
  p.len_q = p.len_kv = 1;
  p.dim_qk = p.dim_vo = 1;
  Arguments a;
  a.q = m.filled({1, 1, 6, 1}, 0.0);
  a.k = m.filled({1, 1, 3, 1}, 0.0);
  a.v = m.f64({1, 1, 3, 1}, {10.0, 20.0, 30.0});
  a.o = m.filled({1, 1, 6, 1}, 0.0);
  a.lse = m.filled({1, 6, 1}, 0.0);
  a.dout = m.f64({1, 1, 6, 1}, {1.0, 2.0, 4.0, 8.0, 16.0, 32.0});
  a.dq = m.filled({1, 1, 6, 1}, 0.0);
  a.dk = m.filled({1, 1, 3, 1}, 0.0);
  a.dv = m.filled({1, 1, 3, 1}, 0.0);
  ASSERT_EQ(forward(p, a), "");
  EXPECT_EQ(values_of(a.o), (Numbers{10.0, 10.0, 20.0, 20.0, 30.0, 30.0}));
  ASSERT_EQ(backward(p, a), "");
  EXPECT_EQ(values_of(a.dv), (Numbers{3.0, 12.0, 48.0}));
}

}  // namespace
}  // namespace attn::reference::test
