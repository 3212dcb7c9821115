// Merge: by hand, and its gradient by central differences.
#include <gtest/gtest.h>

#include <cmath>

#include "compare.hpp"
#include "memory.hpp"
#include "reference/reference.hpp"
#include "sample.hpp"

namespace attn::reference::test {
namespace {

TEST(Merge, ByHand) {
  Memory m;
  MergeArguments a;
  // Weights 1/4 and 3/4; first partial empty (its o is not read); second empty; both empty.
  a.o1 = m.f64({1, 4, 1, 1}, {4.0, kNaN, 5.0, kNaN});
  a.lse1 = m.f64({1, 1, 4}, {1.0, -kInf, 2.0, -kInf});
  a.o2 = m.f64({1, 4, 1, 1}, {8.0, 6.0, kNaN, kNaN});
  a.lse2 = m.f64({1, 1, 4}, {1.0 + std::log(3.0), 3.0, -kInf, -kInf});
  a.o = m.filled({1, 4, 1, 1}, kNaN);
  a.lse = m.filled({1, 1, 4}, kNaN);
  ASSERT_EQ(merge(a), "");
  EXPECT_TRUE(near(values_of(a.o), Numbers{7.0, 6.0, 5.0, 0.0}, 1e-15));
  const Numbers lse = values_of(a.lse);
  EXPECT_NEAR(lse[0], 1.0 + std::log(4.0), 1e-15);
  EXPECT_EQ(lse[1], 3.0);
  EXPECT_EQ(lse[2], 2.0);
  EXPECT_EQ(lse[3], -kInf);
}

TEST(Merge, LargeAndNonFinite) {
  Memory m;
  MergeArguments a;
  a.o1 = m.f64({3, 1, 1}, {4.0, 4.0, 4.0});  // packed
  a.lse1 = m.f64({1, 3}, {1e4, -1e4, 0.0});
  a.o2 = m.f64({3, 1, 1}, {8.0, 8.0, kNaN});
  a.lse2 = m.f64({1, 3}, {1e4, 1e4, kNaN});
  a.o = m.filled({3, 1, 1}, 0.0);
  ASSERT_EQ(merge(a), "");  // without lse
  EXPECT_TRUE(near(values_of(m.f64({2}, {values_of(a.o)[0], values_of(a.o)[1]})), Numbers{6.0, 8.0},
                   1e-12));
  EXPECT_TRUE(std::isnan(values_of(a.o)[2]));
}

TEST(Merge, SinkLast) {
  Setting setting = small_setting();
  Sample plain(setting, 21);
  setting.problem.sink = true;
  Sample with_sink(setting, 21);
  ASSERT_EQ(plain.run_forward(), "");
  ASSERT_EQ(with_sink.run_forward(), "");
  MergeArguments a;
  a.o1 = a.o = plain.arguments.o;
  a.lse1 = a.lse = plain.arguments.lse;
  a.lse2 = with_sink.arguments.sinks;  // [heads_q], expanded over sequences and queries
  a.lse2.rank = 3;
  a.lse2.shape = {2, 4, 5};
  a.lse2.strides = {0, 1, 0};
  ASSERT_EQ(merge(a), "");
  EXPECT_TRUE(near(plain.o, with_sink.o, 1e-14));
  EXPECT_TRUE(near(plain.lse, with_sink.lse, 1e-14));
}

TEST(Merge, GradientByCentralDifferences) {
  constexpr std::int64_t kRows = 3, kHeads = 2, kDim = 3;
  Memory m;
  std::mt19937_64 random(31);
  const auto numbers = [&](std::int64_t count) {
    Numbers values;
    for (std::int64_t n = 0; n < count; ++n) values.push_back(uniform(random, -1.5, 1.5));
    return values;
  };
  const Shape rows{1, kRows, kHeads, kDim};
  const Shape statistics{1, kHeads, kRows};
  const std::int64_t elements = kRows * kHeads * kDim;
  const std::int64_t count = kRows * kHeads;
  for (const bool with_o2 : {true, false}) {
    MergeBackwardArguments b;
    b.o1 = m.f64(rows, numbers(elements));
    b.lse1 = m.f64(statistics, numbers(count));
    if (with_o2) b.o2 = m.f64(rows, numbers(elements));
    b.lse2 = m.f64(statistics, numbers(count));
    write(b.lse1, 1, -kInf);
    write(b.lse2, 2, -kInf);
    write(b.lse1, 5, -kInf);
    write(b.lse2, 5, -kInf);
    b.dout = m.f64(rows, numbers(elements));
    b.dlse = m.f64(statistics, numbers(count));
    b.o = m.filled(rows, kNaN);
    b.lse = m.filled(statistics, kNaN);
    b.dout1 = m.filled(rows, kNaN);
    b.dlse1 = m.filled(statistics, kNaN);
    b.dout2 = m.filled(rows, kNaN);
    b.dlse2 = m.filled(statistics, kNaN);
    MergeArguments f;
    f.o1 = b.o1;
    f.lse1 = b.lse1;
    f.o2 = b.o2;
    f.lse2 = b.lse2;
    f.o = b.o;
    f.lse = b.lse;
    const auto loss = [&] {
      EXPECT_EQ(merge(f), "");
      double sum = 0.0;
      for (std::int64_t e = 0; e < elements; ++e) sum += read(f.o, e) * read(b.dout, e);
      for (std::int64_t n = 0; n < count; ++n) {
        if (!std::isinf(read(f.lse, n))) sum += read(f.lse, n) * read(b.dlse, n);
      }
      return sum;
    };
    loss();
    ASSERT_EQ(merge_backward(b), "");
    const auto check_input = [&](const TensorView& input, const TensorView& gradient,
                                 std::int64_t size) {
      for (std::int64_t e = 0; e < size; ++e) {
        const double x = read(input, e);
        if (std::isinf(x)) {
          EXPECT_EQ(read(gradient, e), 0.0);
          continue;
        }
        const auto at = [&](double step) {
          write(input, e, x + step);
          return loss();
        };
        const double h = 1e-3;
        const double expected = (8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * h);
        write(input, e, x);
        EXPECT_TRUE(std::abs(read(gradient, e) - expected) <= 1e-9)
            << e << ": " << read(gradient, e) << " against " << expected;
      }
    };
    check_input(b.o1, b.dout1, elements);
    check_input(b.lse1, b.dlse1, count);
    if (with_o2) check_input(b.o2, b.dout2, elements);
    check_input(b.lse2, b.dlse2, count);
  }
}

}  // namespace
}  // namespace attn::reference::test
