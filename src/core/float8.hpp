// The 8-bit types (Micikevicius et al. 2022, "FP8 Formats for Deep Learning", section 3): e4m3fn,
// which has no infinities, and e5m2, which is the upper half of an f16.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "core/float16.hpp"

namespace attn::core {

inline float f8e4m3_to_f32(std::uint8_t bits) {
  const std::uint32_t sign = (bits & 0x80u) << 24;
  const std::uint32_t magnitude = bits & 0x7Fu;
  if (magnitude == 0x7Fu) return std::numeric_limits<float>::quiet_NaN();
  // Subnormal: a multiple of 2^-9. Else the exponent's bias changes from 7 to 127.
  const std::uint32_t value =
      magnitude < 8 ? std::bit_cast<std::uint32_t>(static_cast<float>(magnitude) * 0x1p-9f)
                    : (magnitude << 20) + (120u << 23);
  return std::bit_cast<float>(sign | value);
}

inline float f8e5m2_to_f32(std::uint8_t bits) {
  return f16_to_f32(static_cast<std::uint16_t>(bits << 8));
}

namespace detail {

// Rounds to the nearest value of the format, ties to even. `overflow` encodes values above
// `largest`.
inline std::uint8_t to_float8(double value, int fraction_bits, int bias, double largest,
                              std::uint8_t overflow, std::uint8_t nan) {
  const auto sign = static_cast<std::uint8_t>(std::signbit(value) ? 0x80u : 0u);
  if (std::isnan(value)) return sign | nan;
  const double magnitude = std::fabs(value);
  if (magnitude == 0.0) return sign;
  if (std::isinf(magnitude)) return sign | overflow;
  const int smallest_exponent = 1 - bias;
  const int exponent = std::max(std::ilogb(magnitude), smallest_exponent);
  // In units of the last place: 2^fraction_bits or more unless subnormal. If rounding carries into
  // the exponent bits, the code is still correct.
  const double units = std::nearbyint(std::ldexp(magnitude, fraction_bits - exponent));
  if (std::ldexp(units, exponent - fraction_bits) > largest) return sign | overflow;
  const int code = static_cast<int>(units) + ((exponent - smallest_exponent) << fraction_bits);
  return static_cast<std::uint8_t>(sign | code);
}

}  // namespace detail

inline std::uint8_t f8e4m3_from(double value) {
  return detail::to_float8(value, 3, 7, 448.0, 0x7F, 0x7F);
}
inline std::uint8_t f8e5m2_from(double value) {
  return detail::to_float8(value, 2, 15, 57344.0, 0x7C, 0x7E);
}

}  // namespace attn::core
