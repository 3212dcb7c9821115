// The comparator must reject every kind of wrong value.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <utility>

#include "harness/compare.hpp"
#include "harness/values.hpp"

namespace attn::harness {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
const double kNan = std::nan("");

// Three correct rows of four.
Comparands sample(DType dtype) {
  Comparands x;
  x.name = "o";
  x.shape = {3, 4};
  x.dtype = dtype;
  x.in_double = dtype == DType::f64;
  for (std::uint64_t n = 0; n < 12; ++n) {
    x.expected.push_back(hash_normal(1, 2, n));
    x.actual.push_back(round_to(dtype, x.expected.back()));
    x.naive.push_back(x.actual.back());
  }
  x.magnitude = {1.0, 1.0, 1.0};
  return x;
}

constexpr DType kTypes[] = {DType::f32, DType::f16, DType::bf16, DType::f64};

TEST(Comparator, PassesRoundedValues) {
  for (const DType dtype : kTypes) {
    const Comparison result = compare(sample(dtype));
    EXPECT_TRUE(result.passed) << result.message;
    EXPECT_LE(result.worst_ratio, 1.0);
  }
}

TEST(Comparator, FailsANanWhereANumberIsExpected) {
  for (const DType dtype : kTypes) {
    Comparands x = sample(dtype);
    x.actual[6] = kNan;
    const Comparison result = compare(x);
    EXPECT_FALSE(result.passed);
    EXPECT_FALSE(result.worst_ratio <= 1.0);
    EXPECT_NE(result.message.find("o[1, 2] = nan"), std::string::npos) << result.message;
    EXPECT_NE(result.message.find("1 of 12"), std::string::npos) << result.message;
  }
}

TEST(Comparator, FailsANumberWhereANanIsExpected) {
  Comparands x = sample(DType::f32);
  x.expected[6] = kNan;
  EXPECT_FALSE(compare(x).passed);
  x.actual[6] = kInf;
  EXPECT_FALSE(compare(x).passed);
  x.has_planted = true;
  EXPECT_FALSE(compare(x).passed);
  x.name = "lse";
  EXPECT_TRUE(compare(x).passed);
  x.name = "o";
  x.actual[6] = kNan;
  EXPECT_TRUE(compare(x).passed);
}

TEST(Comparator, TellsInfinitiesApart) {
  Comparands x = sample(DType::f32);
  x.expected[3] = -kInf;
  x.actual[3] = kInf;
  EXPECT_FALSE(compare(x).passed);
  x.actual[3] = -std::numeric_limits<float>::max();
  EXPECT_FALSE(compare(x).passed);
  x.actual[3] = -kInf;
  EXPECT_TRUE(compare(x).passed);
}

TEST(Comparator, ExpectsAnInfinityWhereTheTypeOverflows) {
  Comparands x = sample(DType::f16);
  x.expected[0] = 1e6;
  x.actual[0] = kInf;
  EXPECT_TRUE(compare(x).passed);
  x.actual[0] = 65504.0;
  EXPECT_FALSE(compare(x).passed);
}

TEST(Comparator, FailsSwappedRows) {
  for (const DType dtype : kTypes) {
    Comparands x = sample(dtype);
    for (std::size_t n = 0; n < 4; ++n) std::swap(x.actual[n], x.actual[4 + n]);
    EXPECT_FALSE(compare(x).passed);
  }
}

// A global norm would hide the error behind one large row.
TEST(Comparator, FailsASmallRowBesideALargeOne) {
  Comparands x = sample(DType::f32);
  for (std::size_t n = 0; n < 4; ++n) {
    x.expected[n] *= 1e-6;
    x.actual[n] = x.naive[n] = round_to(DType::f32, x.expected[n]);
    x.expected[8 + n] *= 1e6;
    x.actual[8 + n] = x.naive[8 + n] = round_to(DType::f32, x.expected[8 + n]);
  }
  x.magnitude = {1e-6, 1.0, 1e6};
  EXPECT_TRUE(compare(x).passed) << compare(x).message;
  x.actual[1] *= 1.0001;
  EXPECT_FALSE(compare(x).passed);
}

TEST(Comparator, FailsAFewUnitsTooMany) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    Comparands x = sample(dtype);
    double largest = 0.0;
    for (std::size_t n = 0; n < 4; ++n) largest = std::max(largest, std::fabs(x.expected[n]));
    x.actual[0] += 16.0 * unit_roundoff(dtype) * std::max(largest, 1.0);
    EXPECT_FALSE(compare(x).passed) << to_string(dtype);
  }
  Comparands x = sample(DType::f64);
  x.actual[0] += 3e-12;
  EXPECT_FALSE(compare(x).passed);
}

TEST(Comparator, WantsRowsWithoutTermsExact) {
  Comparands x = sample(DType::f32);
  for (std::size_t n = 4; n < 8; ++n) x.expected[n] = x.actual[n] = x.naive[n] = 0.0;
  x.magnitude[1] = 0.0;
  EXPECT_TRUE(compare(x).passed);
  x.actual[5] = 1e-30;
  EXPECT_FALSE(compare(x).passed);
}

TEST(Comparator, RefusesAWrongYardstick) {
  Comparands x = sample(DType::f32);
  x.naive[2] += 0.1;
  const Comparison result = compare(x);
  EXPECT_FALSE(result.passed);
  EXPECT_NE(result.message.find("naive"), std::string::npos);
  x = sample(DType::f32);
  x.naive.pop_back();
  EXPECT_FALSE(compare(x).passed);
}

TEST(Comparator, UsesTheNaiveErrorOfTheRow) {
  Comparands x = sample(DType::f32);
  x.naive[0] = x.expected[0] + 1e-5;
  x.actual[1] = x.expected[1] + 1.9e-5;
  EXPECT_TRUE(compare(x).passed) << compare(x).message;
  x.actual[1] = x.expected[1] + 2.2e-5;
  EXPECT_FALSE(compare(x).passed);
  x.actual[1] = x.expected[1];
  x.actual[5] = x.expected[5] + 1.9e-5;  // another row
  EXPECT_FALSE(compare(x).passed);
}

}  // namespace
}  // namespace attn::harness
