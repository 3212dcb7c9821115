// Conversions between types: rounding to nearest even, range checks, refusals.
#include "files/convert.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace attn::files {
namespace {

template <class T>
FileTensor tensor(const std::string& dtype, const std::vector<T>& values) {
  return {"x", dtype, {static_cast<std::int64_t>(values.size())}, std::as_bytes(std::span(values))};
}

template <class T>
std::vector<T> values_of(const FileTensor& tensor) {
  std::vector<T> out(tensor.data.size() / sizeof(T));
  std::memcpy(out.data(), tensor.data.data(), tensor.data.size());
  return out;
}

template <class To, class From>
To converted(const std::string& from, From value, const std::string& to) {
  const auto out = convert(tensor<From>(from, {value}), to);
  EXPECT_TRUE(out) << out.error();
  return values_of<To>(out->tensor).at(0);
}

constexpr double kInf = std::numeric_limits<double>::infinity();

TEST(Convert, RoundsToF16) {
  const auto f16 = [](double x) { return converted<std::uint16_t>("F64", x, "F16"); };
  EXPECT_EQ(f16(0.0), 0x0000);
  EXPECT_EQ(f16(-0.0), 0x8000);
  EXPECT_EQ(f16(1.0), 0x3c00);
  EXPECT_EQ(f16(-2.0), 0xc000);
  EXPECT_EQ(f16(1.0 + 0x1p-11), 0x3c00);            // a tie, down to even
  EXPECT_EQ(f16(1.0 + 0x3p-11), 0x3c02);            // a tie, up to even
  EXPECT_EQ(f16(1.0 + 0x1p-11 + 0x1p-40), 0x3c01);  // not a tie: rounding twice would lose it
  EXPECT_EQ(f16(2.0 - 0x1p-12), 0x4000);            // carries into the exponent
  EXPECT_EQ(f16(65504.0), 0x7bff);
  EXPECT_EQ(f16(65519.9), 0x7bff);
  EXPECT_EQ(f16(65520.0), 0x7c00);
  EXPECT_EQ(f16(1e300), 0x7c00);
  EXPECT_EQ(f16(-kInf), 0xfc00);
  EXPECT_EQ(f16(0x1p-24), 0x0001);
  EXPECT_EQ(f16(0x1p-25), 0x0000);
  EXPECT_EQ(f16(0x3p-26), 0x0001);
  EXPECT_EQ(f16(0x1p-14), 0x0400);
  EXPECT_EQ(f16(0x1p-14 - 0x1p-26), 0x0400);
  EXPECT_EQ(f16(std::nan("")), 0x7e00);
}

TEST(Convert, RoundsToBf16) {
  const auto bf16 = [](double x) { return converted<std::uint16_t>("F64", x, "BF16"); };
  EXPECT_EQ(bf16(1.0), 0x3f80);
  EXPECT_EQ(bf16(1.0 + 0x1p-8), 0x3f80);
  EXPECT_EQ(bf16(1.0 + 0x3p-8), 0x3f82);
  EXPECT_EQ(bf16(-kInf), 0xff80);
  EXPECT_EQ(bf16(3.4e38), 0x7f80);
  EXPECT_EQ(bf16(0x1p-133), 0x0001);
  EXPECT_EQ(bf16(std::nan("")), 0x7fc0);
}

TEST(Convert, EverySixteenBitValueSurvivesTheWayThroughF64) {
  std::vector<std::uint16_t> all(65536);
  for (std::size_t n = 0; n < all.size(); ++n) all[n] = static_cast<std::uint16_t>(n);
  for (const char* dtype : {"F16", "BF16"}) {
    const auto wide = convert(tensor(dtype, all), "F64");
    ASSERT_TRUE(wide) << wide.error();
    const auto back = convert(wide->tensor, dtype);
    ASSERT_TRUE(back) << back.error();
    const auto numbers = values_of<double>(wide->tensor);
    const auto bits = values_of<std::uint16_t>(back->tensor);
    for (std::size_t n = 0; n < all.size(); ++n) {
      if (std::isnan(numbers[n])) continue;
      ASSERT_EQ(bits[n], all[n]) << dtype;
    }
  }
  EXPECT_EQ(converted<double>("BF16", std::uint16_t{0x4049}, "F64"), 3.140625);
  EXPECT_EQ(converted<double>("F16", std::uint16_t{0x3555}, "F64"), 0.333251953125);
}

TEST(Convert, IntegersMustFit) {
  EXPECT_EQ(converted<std::int32_t>("I64", std::int64_t{-7}, "I32"), -7);
  EXPECT_EQ(converted<std::int32_t>("U8", std::uint8_t{255}, "I32"), 255);
  EXPECT_EQ(converted<std::uint8_t>("BOOL", std::uint8_t{1}, "U8"), 1);
  EXPECT_EQ(converted<float>("I16", std::int16_t{-3}, "F32"), -3.0f);
  EXPECT_EQ(convert(tensor<std::int64_t>("I64", {1, 1LL << 31}), "I32").error(),
            "element 1 of tensor 'x' doesn't fit I32: found 2147483648; accepted -2147483648 to "
            "2147483647");
  EXPECT_EQ(convert(tensor<std::uint64_t>("U64", {1ULL << 63}), "I64").error(),
            "element 0 of tensor 'x' doesn't fit I64: found 2^63 or more; accepted "
            "-9223372036854775808 to 9223372036854775807");
  EXPECT_EQ(convert(tensor<float>("F32", {1.0f}), "I32").error(),
            "tensor 'x' of type F32 can't be converted to I32; accepted BOOL, and integers from "
            "-2147483648 to 2147483647");
  EXPECT_EQ(
      convert(tensor<std::uint8_t>("F8_E4M3", {1}), "F32").error(),
      "tensor 'x' of type F8_E4M3 can't be converted to F32; accepted floats, integers and BOOL");
}

TEST(Convert, TensorsThatCantExistAreRefused) {
  EXPECT_EQ(make_tensor("x", "F32", {1LL << 40, 1LL << 40}).error(),
            "tensor 'x' has a size that overflows");
  const auto empty = make_tensor("x", "F32", {0, 3});
  ASSERT_TRUE(empty) << empty.error();
  EXPECT_TRUE(empty->tensor.data.empty());
}

}  // namespace
}  // namespace attn::files
