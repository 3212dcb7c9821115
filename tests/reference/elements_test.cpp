// Number formats: known values, round trips of every code, and rounding between all neighbours.
#include "reference/elements.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "compare.hpp"
#include "memory.hpp"

namespace attn::reference::test {
namespace {

struct Named {
  const char* name;
  Format format;
};
const Named kFormats[] = {{"f16", kF16}, {"bf16", kBf16}, {"f8e4m3", kF8e4m3}, {"f8e5m2", kF8e5m2}};

std::uint32_t codes(const Format& format) {
  return 1u << (1 + format.exponent_bits + format.mantissa_bits);
}

TEST(Elements, KnownCodes) {
  EXPECT_EQ(decode_bits(0x3C00, kF16), 1.0);
  EXPECT_EQ(decode_bits(0xC000, kF16), -2.0);
  EXPECT_EQ(decode_bits(0x7BFF, kF16), 65504.0);
  EXPECT_EQ(decode_bits(0x0001, kF16), 0x1p-24);
  EXPECT_EQ(decode_bits(0x0400, kF16), 0x1p-14);
  EXPECT_EQ(decode_bits(0x3555, kF16), 0.333251953125);
  EXPECT_EQ(decode_bits(0x7C00, kF16), kInf);
  EXPECT_EQ(decode_bits(0xFC00, kF16), -kInf);
  EXPECT_TRUE(std::isnan(decode_bits(0x7C01, kF16)));
  EXPECT_TRUE(std::signbit(decode_bits(0x8000, kF16)));

  EXPECT_EQ(decode_bits(0x3F80, kBf16), 1.0);
  EXPECT_EQ(decode_bits(0x4049, kBf16), 3.140625);
  EXPECT_EQ(decode_bits(0x0001, kBf16), 0x1p-133);
  EXPECT_EQ(decode_bits(0x7F7F, kBf16), 0x1.FEp127);
  EXPECT_EQ(decode_bits(0xFF80, kBf16), -kInf);

  EXPECT_EQ(decode_bits(0x38, kF8e4m3), 1.0);
  EXPECT_EQ(decode_bits(0x7E, kF8e4m3), 448.0);
  EXPECT_EQ(decode_bits(0x01, kF8e4m3), 0x1p-9);
  EXPECT_TRUE(std::isnan(decode_bits(0x7F, kF8e4m3)));
  EXPECT_TRUE(std::isnan(decode_bits(0xFF, kF8e4m3)));

  EXPECT_EQ(decode_bits(0x3C, kF8e5m2), 1.0);
  EXPECT_EQ(decode_bits(0x7B, kF8e5m2), 57344.0);
  EXPECT_EQ(decode_bits(0x01, kF8e5m2), 0x1p-16);
  EXPECT_EQ(decode_bits(0x7C, kF8e5m2), kInf);
  EXPECT_TRUE(std::isnan(decode_bits(0x7D, kF8e5m2)));
}

TEST(Elements, KnownRoundings) {
  EXPECT_EQ(encode_bits(65519.99, kF16), 0x7BFFu);
  EXPECT_EQ(encode_bits(65520.0, kF16), 0x7C00u);
  EXPECT_EQ(encode_bits(-1e300, kF16), 0xFC00u);
  EXPECT_EQ(encode_bits(0x1p-25, kF16), 0x0000u);  // tie to even
  EXPECT_EQ(encode_bits(0x1.000001p-25, kF16), 0x0001u);
  EXPECT_EQ(encode_bits(0x1.8p-24, kF16), 0x0002u);
  EXPECT_EQ(encode_bits(-0x1p-1074, kF16), 0x8000u);
  EXPECT_EQ(encode_bits(1.0 + 0x1p-11, kF16), 0x3C00u);
  EXPECT_EQ(encode_bits(1.0 + 0x3p-11, kF16), 0x3C02u);
  EXPECT_EQ(encode_bits(1.0 + 0x1p-8, kBf16), 0x3F80u);
  // Rounding in two steps, through f32, would turn this into the tie above.
  EXPECT_EQ(encode_bits(1.0 + 0x1p-8 + 0x1p-40, kBf16), 0x3F81u);
  EXPECT_EQ(encode_bits(0x1.FFp127, kBf16), 0x7F80u);
  EXPECT_EQ(encode_bits(464.0, kF8e4m3), 0x7Eu);
  EXPECT_EQ(encode_bits(465.0, kF8e4m3), 0x7Fu);
  EXPECT_EQ(encode_bits(-kInf, kF8e4m3), 0xFFu);
  EXPECT_EQ(encode_bits(61440.0, kF8e5m2), 0x7Cu);
}

TEST(Elements, EveryCodeThereAndBack) {
  for (const Named& named : kFormats) {
    for (std::uint32_t code = 0; code < codes(named.format); ++code) {
      const double value = decode_bits(code, named.format);
      if (std::isnan(value)) {
        ASSERT_TRUE(std::isnan(decode_bits(encode_bits(value, named.format), named.format)));
      } else {
        ASSERT_EQ(encode_bits(value, named.format), code) << named.name;
      }
    }
  }
}

TEST(Elements, RoundsToNearestEvenBetweenAllNeighbours) {
  for (const Named& named : kFormats) {
    const std::uint32_t sign = codes(named.format) / 2;
    for (std::uint32_t code = 0; code + 1 < sign; ++code) {
      const double low = decode_bits(code, named.format);
      const double high = decode_bits(code + 1, named.format);
      if (!std::isfinite(low) || !std::isfinite(high)) continue;
      const double middle = (low + high) / 2;
      const std::uint32_t even = code % 2 == 0 ? code : code + 1;
      const double below = std::nextafter(middle, low);
      const double above = std::nextafter(middle, high);
      ASSERT_EQ(encode_bits(middle, named.format), even) << named.name << " " << low;
      ASSERT_EQ(encode_bits(below, named.format), code) << named.name << " " << low;
      ASSERT_EQ(encode_bits(above, named.format), code + 1) << named.name << " " << low;
      ASSERT_EQ(encode_bits(-above, named.format), sign | (code + 1)) << named.name << " " << low;
    }
  }
}

TEST(Elements, ReadAndWriteEveryType) {
  Memory memory;
  for (const DType dtype :
       {DType::f64, DType::f32, DType::f16, DType::bf16, DType::f8e4m3, DType::f8e5m2}) {
    const TensorView view = memory.tensor(dtype, {3}, {1.5, -0.25, 3.0});
    EXPECT_TRUE(same(values_of(view), Numbers{1.5, -0.25, 3.0}));
  }
  const TensorView f32 = memory.tensor(DType::f32, {1}, {0.1});
  float stored = 0.0f;
  std::memcpy(&stored, f32.data, sizeof stored);
  EXPECT_EQ(stored, 0.1f);
  EXPECT_EQ(read_integer(memory.integers({2}, {7, -8}), 1), -8);
  EXPECT_EQ(read_integer(memory.bytes({2}, {7, 200}), 1), 200);
  TensorView later = memory.f64({3}, {1.0, 2.0, 3.0});
  later.offset_bytes = 16;
  EXPECT_EQ(read(later, 0), 3.0);
}

}  // namespace
}  // namespace attn::reference::test
