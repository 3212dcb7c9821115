// Values computed by hand: the score, the softmax, its gradients, empty rows, non-finite values.
#include <gtest/gtest.h>

#include <cmath>

#include "compare.hpp"
#include "tiny.hpp"

namespace attn::reference::test {
namespace {

constexpr double kExact = 1e-15;
const double kLn2 = std::log(2.0);
const double kLn3 = std::log(3.0);
const double kLn4 = std::log(4.0);

TEST(Hand, OneKey) {
  Tiny t({2.0}, {3.0}, {5.0});
  t.arguments.scale = -0.5;
  t.add_dlse({10.0});
  ASSERT_EQ(t.run(), "");
  EXPECT_TRUE(same(t.o(), Numbers{5.0}));
  EXPECT_TRUE(same(t.lse(), Numbers{-3.0}));
  EXPECT_TRUE(near(t.dq(), Numbers{-0.5 * 10.0 * 3.0}, kExact));
  EXPECT_TRUE(near(t.dk(), Numbers{-0.5 * 10.0 * 2.0}, kExact));
  EXPECT_TRUE(same(t.dv(), Numbers{1.0}));
}

TEST(Hand, TwoKeys) {
  Tiny t({1.0}, {0.0, kLn3}, {4.0, 8.0});  // p = 1/4, 3/4
  ASSERT_EQ(t.run(), "");
  EXPECT_TRUE(near(t.o(), Numbers{7.0}, kExact));
  EXPECT_TRUE(near(t.lse(), Numbers{kLn4}, kExact));
  EXPECT_TRUE(near(t.dq(), Numbers{0.75 * kLn3}, kExact));  // ds = -3/4, 3/4
  EXPECT_TRUE(near(t.dk(), Numbers{-0.75, 0.75}, kExact));
  EXPECT_TRUE(near(t.dv(), Numbers{0.25, 0.75}, kExact));
}

TEST(Hand, DeltaGivenInsteadOfO) {
  Tiny t({1.0}, {0.0, kLn3}, {4.0, 8.0});
  ASSERT_EQ(t.run_forward(), "");
  t.problem.delta = true;
  t.arguments.delta = t.memory.f64({1, 1, 1}, {7.0 - 2.0});  // equivalent to dlse = 2
  t.arguments.o = TensorView{};
  ASSERT_EQ(backward(t.problem, t.arguments), "");
  EXPECT_TRUE(near(t.dk(), Numbers{0.25 * (4.0 - 5.0), 0.75 * (8.0 - 5.0)}, kExact));
}

TEST(Hand, DefaultScale) {
  Memory m;
  Problem p;
  p.dtype = DType::f64;
  p.len_q = p.len_kv = 1;
  p.dim_qk = 4;
  p.dim_vo = 1;
  Arguments a;
  a.q = m.filled({1, 1, 1, 4}, 1.0);
  a.k = m.filled({1, 1, 1, 4}, 3.0);
  a.v = m.filled({1, 1, 1, 1}, 1.0);
  a.o = m.filled({1, 1, 1, 1}, 0.0);
  a.lse = m.filled({1, 1, 1}, 0.0);
  ASSERT_EQ(forward(p, a), "");
  EXPECT_EQ(values_of(a.lse)[0], 6.0);
}

TEST(Hand, Softcap) {
  Tiny t({1.0}, {kLn3}, {1.0});  // 2 tanh(ln(3) / 2) = 1
  t.problem.softcap = true;
  t.arguments.softcap = 2.0;
  t.add_dlse({1.0});
  ASSERT_EQ(t.run(), "");
  EXPECT_TRUE(near(t.lse(), Numbers{1.0}, kExact));
  EXPECT_TRUE(near(t.dk(), Numbers{0.75}, kExact));
}

TEST(Hand, Alibi) {
  Tiny t({1.0, 1.0}, {0.0, 0.0, 0.0}, {1.0, 10.0, 100.0});
  t.problem.alibi = true;
  t.arguments.alibi_slopes = t.memory.f64({1}, {kLn2});
  ASSERT_EQ(t.run_forward(), "");  // query 0 is at key 1, query 1 at key 2
  EXPECT_TRUE(near(t.lse(), Numbers{kLn2, std::log(1.75)}, kExact));
  EXPECT_TRUE(near(t.o(), Numbers{(0.5 + 10.0 + 50.0) / 2.0, (0.25 + 5.0 + 100.0) / 1.75}, kExact));
  t.problem.diagonal = Diagonal::top_left;
  ASSERT_EQ(t.run_forward(), "");
  EXPECT_TRUE(near(t.o(), Numbers{(1.0 + 5.0 + 25.0) / 1.75, (0.5 + 10.0 + 50.0) / 2.0}, kExact));
}

TEST(Hand, Bias) {
  Tiny t({1.0}, {0.0, 0.0, 0.0}, {4.0, 8.0, 1000.0});
  t.add_bias({0.0, kLn3, -kInf});
  ASSERT_EQ(t.run(), "");
  EXPECT_TRUE(near(t.o(), Numbers{7.0}, kExact));
  EXPECT_TRUE(near(t.lse(), Numbers{kLn4}, kExact));
  EXPECT_TRUE(near(t.dbias(), Numbers{-0.75, 0.75, 0.0}, kExact));
  EXPECT_TRUE(near(t.dv(), Numbers{0.25, 0.75, 0.0}, kExact));
}

TEST(Hand, BiasExpandedByStrideZero) {
  Tiny t({1.0, 1.0}, {0.0, 0.0}, {4.0, 8.0});
  t.add_bias({0.0, kLn3, 0.0, 0.0});
  t.problem.bias.q = false;
  t.arguments.bias.strides[2] = 0;
  t.arguments.dbias = t.memory.filled({1, 1, 1, 2}, 777.0);
  ASSERT_EQ(t.run(), "");
  EXPECT_TRUE(near(t.o(), Numbers{7.0, 7.0}, kExact));
  EXPECT_TRUE(near(t.dbias(), Numbers{-1.5, 1.5}, kExact));
}

TEST(Hand, Sink) {
  Tiny t({1.0}, {0.0}, {8.0});
  t.add_sink(kLn3);
  t.add_dlse({5.0});
  ASSERT_EQ(t.run(), "");  // p = 1/4; the sink has 3/4
  EXPECT_TRUE(near(t.o(), Numbers{2.0}, kExact));
  EXPECT_TRUE(near(t.lse(), Numbers{kLn4}, kExact));
  EXPECT_TRUE(near(t.dsink(), Numbers{-0.75 * (2.0 - 5.0)}, kExact));
  EXPECT_TRUE(near(t.dv(), Numbers{0.25}, kExact));
}

TEST(Hand, SinkWithoutKeys) {
  Tiny t({1.0, 1.0}, {}, {});
  t.add_sink(-3.0);
  t.add_dlse({5.0, 7.0});
  ASSERT_EQ(t.run(), "");
  EXPECT_TRUE(same(t.o(), Numbers{0.0, 0.0}));
  EXPECT_TRUE(same(t.lse(), Numbers{-3.0, -3.0}));
  EXPECT_TRUE(same(t.dq(), Numbers{0.0, 0.0}));
  EXPECT_TRUE(same(t.dsink(), Numbers{12.0}));
}

TEST(Hand, SinkOfMinusInfinityIsNone) {
  Tiny t({1.0}, {}, {});
  t.add_sink(-kInf);
  t.add_dlse({5.0});
  ASSERT_EQ(t.run(), "");
  EXPECT_TRUE(same(t.lse(), Numbers{-kInf}));
  EXPECT_TRUE(same(t.dsink(), Numbers{0.0}));
}

TEST(Hand, EmptyRow) {
  Tiny t({1.0, 1.0}, {3.0}, {5.0});  // query 0 is at key -1
  t.problem.causal = true;
  t.add_dlse({kNaN, 0.0});
  t.arguments.dout = t.memory.f64({1, 2, 1, 1}, {1.0, 2.0});
  ASSERT_EQ(t.run(), "");
  EXPECT_TRUE(same(t.o(), Numbers{0.0, 5.0}));
  EXPECT_TRUE(same(t.lse(), Numbers{-kInf, 3.0}));
  EXPECT_TRUE(same(t.dq(), Numbers{0.0, 0.0}));
  EXPECT_TRUE(same(t.dv(), Numbers{2.0}));
}

TEST(Hand, NoQueriesStillZeroes) {
  Tiny t({}, {1.0, 2.0}, {3.0, 4.0});
  t.add_sink(1.0);
  ASSERT_EQ(t.run(), "");
  EXPECT_TRUE(same(t.dk(), Numbers{0.0, 0.0}));
  EXPECT_TRUE(same(t.dv(), Numbers{0.0, 0.0}));
  EXPECT_TRUE(same(t.dsink(), Numbers{0.0}));
}

TEST(Hand, Accumulate) {
  Tiny t({1.0}, {0.0, kLn3}, {4.0, 8.0});
  t.add_bias({0.0, 0.0});
  t.add_sink(-kInf);
  t.problem.lengths_kv = true;
  t.problem.len_kv = 2;
  t.arguments.len_kv = t.memory.integers({1}, {1});  // one key: p = 1
  t.problem.accumulate = true;
  fill(t.arguments.dq, 100.0);
  fill(t.arguments.dk, 100.0);
  fill(t.arguments.dv, 100.0);
  fill(t.arguments.dbias, 100.0);
  fill(t.arguments.dsink, 100.0);
  ASSERT_EQ(t.run(), "");
  EXPECT_TRUE(same(t.dq(), Numbers{100.0}));
  EXPECT_TRUE(same(t.dk(), Numbers{100.0, 100.0}));
  EXPECT_TRUE(same(t.dv(), Numbers{101.0, 100.0}));
  EXPECT_TRUE(same(t.dbias(), Numbers{100.0, 100.0}));
  EXPECT_TRUE(same(t.dsink(), Numbers{100.0}));
}

TEST(Hand, AccumulateRoundsOnce) {
  Tiny t({1.0}, {0.0}, {1.0});
  t.arguments.dv = t.memory.tensor(DType::bf16, {1, 1, 1, 1}, {256.0});  // spacing 2 from 256 on
  t.problem.accumulate = true;
  ASSERT_EQ(t.run(), "");
  EXPECT_TRUE(same(t.dv(), Numbers{256.0}));  // 257 is a tie and rounds to even
  t.arguments.dout = t.memory.f64({1, 1, 1, 1}, {1.0625});
  ASSERT_EQ(t.run(), "");
  EXPECT_TRUE(same(t.dv(), Numbers{258.0}));
}

TEST(Hand, VisibleNonFiniteScore) {
  for (const double bad : {kNaN, kInf}) {
    Tiny t({1.0, 1.0}, {0.0, bad}, {4.0, 8.0});
    t.problem.causal = true;
    ASSERT_EQ(t.run_forward(), "");
    EXPECT_TRUE(same(t.o(), Numbers{4.0, kNaN}));
    EXPECT_EQ(t.lse()[0], 0.0);
    EXPECT_FALSE(std::isfinite(t.lse()[1]));
  }
  Tiny hidden({1.0}, {0.0, -kInf}, {4.0, 8.0});  // a score of -inf hides the key
  ASSERT_EQ(hidden.run_forward(), "");
  EXPECT_TRUE(same(hidden.o(), Numbers{4.0}));
}

TEST(Hand, BiasOfMinusInfinityHidesAnything) {
  Tiny t({1.0}, {0.0, kNaN, kInf}, {4.0, 8.0, 8.0});
  t.add_bias({0.0, -kInf, -kInf});
  ASSERT_EQ(t.run(), "");
  EXPECT_TRUE(same(t.o(), Numbers{4.0}));
  EXPECT_TRUE(same(t.lse(), Numbers{0.0}));
  EXPECT_TRUE(same(t.dbias(), Numbers{0.0, 0.0, 0.0}));
}

// Dropout of the pair does not hide its score's NaN.
TEST(Hand, NonFiniteScoreOfDroppedPair) {
  int dropped = 0;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    Tiny finite({1.0}, {0.0}, {4.0});
    Tiny bad({1.0}, {kNaN}, {4.0});
    for (Tiny* t : {&finite, &bad}) {
      t->problem.dropout = true;
      t->arguments.dropout_p = 0.9;
      t->arguments.seed = seed;
      ASSERT_EQ(t->run_forward(), "");
    }
    dropped += finite.o()[0] == 0.0;
    EXPECT_TRUE(std::isnan(bad.o()[0]));
  }
  EXPECT_GT(dropped, 10);
}

TEST(Hand, NonfiniteZero) {
  Tiny t({1.0, 1.0}, {0.0, kNaN}, {4.0, 8.0});
  t.problem.causal = true;
  t.problem.nonfinite_zero = true;
  t.arguments.nonfinite_count = t.memory.integers({1}, {40});
  ASSERT_EQ(t.run_forward(), "");
  EXPECT_TRUE(same(t.o(), Numbers{4.0, 0.0}));
  EXPECT_FALSE(std::isfinite(t.lse()[1]));
  EXPECT_EQ(read_integer(t.arguments.nonfinite_count, 0), 41);
  ASSERT_EQ(backward(t.problem, t.arguments), "");
  // dq of query 1; dk and dv of both keys, which it sees.
  EXPECT_TRUE(same(t.dq(), Numbers{0.0, 0.0}));
  EXPECT_TRUE(same(t.dk(), Numbers{0.0, 0.0}));
  EXPECT_TRUE(same(t.dv(), Numbers{0.0, 0.0}));
  EXPECT_EQ(read_integer(t.arguments.nonfinite_count, 0), 46);
}

TEST(Hand, RefusesWhatItCannotRead) {
  Tiny t({1.0}, {0.0}, {4.0});
  t.arguments.lse = TensorView{};
  EXPECT_EQ(t.run_forward(), "reference forward: lse is not given");
  t.problem.lse = false;
  EXPECT_EQ(t.run_forward(), "");
  t.problem.sink = true;
  EXPECT_EQ(t.run_forward(), "reference forward: sinks is not given");
  t.problem.sink = false;
  t.arguments.v.device = Device::cuda;
  EXPECT_EQ(t.run_forward(), "reference forward: v is not in host memory");
}

}  // namespace
}  // namespace attn::reference::test
