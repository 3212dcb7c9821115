// Conversions of 8-bit elements in kernels, compiled for the host: every code, and numbers around
// every one, against core's.
#include <gtest/gtest.h>

#include <algorithm>
#include <attn/problem.hpp>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "core/float8.hpp"
#include "device_words.hpp"

// NOLINTBEGIN: names of the language
using std::fmaxf;
using std::fminf;
using std::rintf;
inline float __uint_as_float(unsigned bits) {
  return std::bit_cast<float>(bits);
}
inline unsigned __float_as_uint(float value) {
  return std::bit_cast<unsigned>(value);
}
namespace config {
constexpr int f8e4m3 = static_cast<int>(attn::DType::f8e4m3);
constexpr int f8e5m2 = static_cast<int>(attn::DType::f8e5m2);
constexpr int i8 = static_cast<int>(attn::DType::i8);
}  // namespace config
// NOLINTEND
// After the words that it uses.
#include "cuda/kernels/shared/element_8bit.cuh"

namespace attn::cuda::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

float expected_from(std::uint8_t bits, int type) {
  if (type == config::i8) return static_cast<std::int8_t>(bits);
  return type == config::f8e4m3 ? core::f8e4m3_to_f32(bits) : core::f8e5m2_to_f32(bits);
}
std::uint8_t expected_to(float value, int type) {
  if (type == config::f8e4m3) return core::f8e4m3_from(static_cast<double>(value));
  if (type == config::f8e5m2) return core::f8e5m2_from(static_cast<double>(value));
  if (std::isnan(value)) return 0;
  return static_cast<std::uint8_t>(
      static_cast<std::int8_t>(std::nearbyint(std::clamp(value, -128.0f, 127.0f))));
}

TEST(Cuda8Bit, ConversionsAreThoseOfTheHost) {
  for (const int type : {config::f8e4m3, config::f8e5m2, config::i8}) {
    for (int code = 0; code < 256; ++code) {
      const auto bits = static_cast<std::uint8_t>(code);
      const float value = shared::From8Bit(bits, type);
      const float expected = expected_from(bits, type);
      EXPECT_TRUE(std::isnan(expected)
                      ? std::isnan(value)
                      : std::bit_cast<unsigned>(value) == std::bit_cast<unsigned>(expected))
          << code << " of type " << type << ": " << value << ", not " << expected;
      for (const float fraction : {1.0f, 1.0625f, 1.03125f, 0.9375f, 0.97f, 1.25f, 0.5f, 2.0f}) {
        for (const float direction : {-kInf, 0.0f, kInf}) {
          const float near = expected * fraction;
          const float x = direction == 0.0f ? near : std::nextafter(near, direction);
          EXPECT_EQ(shared::To8Bit(x, type), expected_to(x, type)) << x << " as type " << type;
        }
      }
    }
    for (float x : {0.0f, 0x1p-149f, 0x1p-20f, 0.5f, 1.5f, 2.5f, 126.5f, 127.5f, 128.5f, 464.0f,
                    465.0f, 61440.0f, 61439.0f, 1e38f, kInf, std::nanf("")}) {
      EXPECT_EQ(shared::To8Bit(x, type), expected_to(x, type)) << x << " as type " << type;
      EXPECT_EQ(shared::To8Bit(-x, type), expected_to(-x, type)) << -x << " as type " << type;
    }
  }
}

}  // namespace
}  // namespace attn::cuda::test
