// The 8-bit types: every code by its definition, and rounding.
#include "core/float8.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace attn {
namespace {

// By definition, in f64: sign, exponent and fraction; the smallest exponent has no hidden bit.
double value_of(unsigned bits, int fraction_bits, int bias) {
  const unsigned magnitude = bits & 0x7Fu;
  const int exponent = static_cast<int>(magnitude >> fraction_bits);
  const double fraction = std::ldexp(magnitude & ((1u << fraction_bits) - 1), -fraction_bits);
  const double value =
      exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, exponent - bias);
  return (bits & 0x80u) != 0 ? -value : value;
}

TEST(Float8, EveryCodeOfE4m3) {
  for (unsigned bits = 0; bits < 256; ++bits) {
    const float value = core::f8e4m3_to_f32(static_cast<std::uint8_t>(bits));
    if ((bits & 0x7Fu) == 0x7Fu) {
      EXPECT_TRUE(std::isnan(value)) << bits;
      EXPECT_EQ(core::f8e4m3_from(value) & 0x7F, 0x7F);
    } else {
      EXPECT_EQ(value, value_of(bits, 3, 7)) << bits;
      EXPECT_EQ(core::f8e4m3_from(value), bits);
    }
  }
}

TEST(Float8, EveryCodeOfE5m2) {
  for (unsigned bits = 0; bits < 256; ++bits) {
    const float value = core::f8e5m2_to_f32(static_cast<std::uint8_t>(bits));
    if ((bits & 0x7Fu) > 0x7Cu) {
      EXPECT_TRUE(std::isnan(value)) << bits;
      EXPECT_EQ(core::f8e5m2_from(value) & 0x7F, 0x7E);
    } else if ((bits & 0x7Fu) == 0x7Cu) {
      EXPECT_TRUE(std::isinf(value)) << bits;
      EXPECT_EQ(core::f8e5m2_from(value), bits);
    } else {
      EXPECT_EQ(value, value_of(bits, 2, 15)) << bits;
      EXPECT_EQ(core::f8e5m2_from(value), bits);
    }
  }
}

// Between two neighbours: to the nearer one, from the middle to the even one.
TEST(Float8, RoundsToTheNearestAndTiesToEven) {
  for (unsigned bits = 0; bits < 0x7Eu; ++bits) {
    const double low = value_of(bits, 3, 7);
    const double middle = (low + value_of(bits + 1, 3, 7)) / 2;
    EXPECT_EQ(core::f8e4m3_from(std::nextafter(middle, 0.0)), bits);
    EXPECT_EQ(core::f8e4m3_from(middle), bits + bits % 2);
    EXPECT_EQ(core::f8e4m3_from(-std::nextafter(middle, 1e9)), (bits + 1) | 0x80u);
  }
}

TEST(Float8, WhatIsTooLargeIsNanOrInfinite) {
  EXPECT_EQ(core::f8e4m3_from(464.0), 0x7E);  // the middle of 448 and what would be 480
  EXPECT_EQ(core::f8e4m3_from(465.0), 0x7F);
  EXPECT_EQ(core::f8e4m3_from(-std::numeric_limits<double>::infinity()), 0xFF);
  EXPECT_EQ(core::f8e5m2_from(61439.0), 0x7B);
  EXPECT_EQ(core::f8e5m2_from(61440.0), 0x7C);  // a tie goes to the even code, infinity
  EXPECT_EQ(core::f8e5m2_from(-1e9), 0xFC);
}

}  // namespace
}  // namespace attn
