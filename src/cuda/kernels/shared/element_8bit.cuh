// Elements of 8-bit types as f32, one at a time, for small passes. f8 formats: Micikevicius et al.
// 2022 (FP8 Formats for Deep Learning), section 3. Include after config.cuh.
#pragma once

namespace shared {

__device__ __forceinline__ constexpr bool Is8Bit(int type) {
  return type == config::f8e4m3 || type == config::f8e5m2 || type == config::i8;
}

// Converts exactly.
__device__ __forceinline__ float From8Bit(unsigned char bits, int type) {
  if (type == config::i8) return static_cast<float>(static_cast<signed char>(bits));
  // The exponent bias is 7 (e4m3) or 15 (e5m2), and 127 in f32. e5m2 encodes infinity as the
  // largest exponent with fraction 0, and NaN with other fractions. e4m3 has one NaN, all ones.
  const bool e4m3 = type == config::f8e4m3;
  const unsigned magnitude = bits & 0x7fu;
  const float value = e4m3 ? __uint_as_float(magnitude << 20) * 0x1p120f
                           : __uint_as_float(magnitude << 21) * 0x1p112f;
  unsigned word = __float_as_uint(value);
  if (magnitude >= (e4m3 ? 0x7fu : 0x7cu)) word = magnitude == 0x7cu ? 0x7f800000u : 0x7fc00000u;
  return __uint_as_float(word | (bits & 0x80u) << 24);
}

// Rounds to the nearest value, ties to even. i8 saturates and converts NaN to 0. e5m2 overflows to
// infinity; e4m3 has no infinity and overflows to NaN.
__device__ __forceinline__ unsigned char To8Bit(float value, int type) {
  if (type == config::i8) {
    const float clamped = value == value ? fminf(fmaxf(value, -128.0f), 127.0f) : 0.0f;
    return static_cast<unsigned char>(static_cast<int>(rintf(clamped)));
  }
  const bool e4m3 = type == config::f8e4m3;
  const int fraction_bits = e4m3 ? 3 : 2;
  const int smallest = e4m3 ? 121 : 113;  // the smallest normal exponent, as f32 encodes it
  const int overflow = e4m3 ? 0x7f : 0x7c;
  const unsigned bits = __float_as_uint(value) & 0x7fffffffu;
  const unsigned sign = __float_as_uint(value) >> 24 & 0x80u;
  int code = bits > 0x7f800000u && !e4m3 ? 0x7e : overflow;
  if (bits < 0x7f800000u) {
    // `units` counts units of the last place, at least 2^fraction_bits unless the value is
    // subnormal. A carry out of the fraction increments the exponent, as it should.
    const int exponent = max(static_cast<int>(bits >> 23), smallest);
    const float unit = __uint_as_float(static_cast<unsigned>(254 + fraction_bits - exponent) << 23);
    const int units = static_cast<int>(rintf(__uint_as_float(bits) * unit));
    code = min(units + ((exponent - smallest) << fraction_bits), overflow);
  }
  return static_cast<unsigned char>(sign | static_cast<unsigned>(code));
}

}  // namespace shared
