// Arithmetic of PTX, better than the approximations of a device.
#include <immintrin.h>
#include <time.h>

#include <algorithm>
#include <cmath>

#include "core/float8.hpp"
#include "state.hpp"

namespace emulator {
namespace {

constexpr u16 kNan = 0x7fff;

float flush_to_zero(float x) {
  return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x;
}
u16 to_bf16(float x) {
  if (std::isnan(x)) return kNan;
  const u32 word = bits<u32>(x);
  return static_cast<u16>((word + 0x7fff + (word >> 16 & 1)) >> 16);
}
u16 to_f16(float x) {
  return std::isnan(x) ? kNan : static_cast<u16>(_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT));
}

}  // namespace

float to_float(bool bf16, u32 x) {
  if (bf16) return bits<float>(x << 16);
  return _cvtsh_ss(static_cast<u16>(x));
}

float to_float(Element element, u32 x) {
  switch (element) {
    case Element::e4m3: return attn::core::f8e4m3_to_f32(static_cast<u8>(x));
    case Element::e5m2: return attn::core::f8e5m2_to_f32(static_cast<u8>(x));
    default: return to_float(element == Element::bf16, x);
  }
}

float ex2(float x) {
  return flush_to_zero(std::exp2(x));
}
float lg2(float x) {
  return std::log2(flush_to_zero(x));
}
float rcp(float x) {
  return flush_to_zero(1.0f / flush_to_zero(x));
}
float tanh_approx(float x) {
  return std::tanh(x);
}
float min_nan(float x, float y) {
  return std::isnan(x) || std::isnan(y) ? NAN : std::min(x, y);
}
float max_nan(float x, float y) {
  return std::isnan(x) || std::isnan(y) ? NAN : std::max(x, y);
}
u32 pack_bf16(float high, float low) {
  return static_cast<u32>(to_bf16(high)) << 16 | to_bf16(low);
}
u32 pack_f16(float high, float low) {
  return static_cast<u32>(to_f16(high)) << 16 | to_f16(low);
}
u16 pack_e4m3(float high, float low) {
  const auto byte = [](float x) {
    if (!std::isnan(x)) x = std::min(std::max(x, -448.0f), 448.0f);
    return attn::core::f8e4m3_from(static_cast<double>(x));
  };
  return static_cast<u16>(byte(high) << 8 | byte(low));
}
u32 permute_bytes(u32 x, u32 y, u32 selector) {
  const u64 bytes = static_cast<u64>(y) << 32 | x;
  u32 result = 0;
  for (int i = 0; i < 4; ++i) {
    const u32 nibble = selector >> 4 * i & 15;
    if (nibble > 7) fail("prmt: sign replication is missing");
    result |= static_cast<u32>(bytes >> 8 * nibble & 255) << 8 * i;
  }
  return result;
}
float f16_to_f32(u16 x) {
  return to_float(false, x);
}
// Halves away from zero.
u32 round_to_tf32(float x) {
  const u32 word = bits<u32>(x);
  if (std::isnan(x)) return 0x7fffffff;
  return std::isinf(x) ? word : (word + 0x1000) & ~0x1fffu;
}

u32 fma_bf16x2(u32 a, u32 b, u32 c) {
  const auto half = [&](int shift) {
    return std::fmaf(to_float(true, a >> shift), to_float(true, b >> shift),
                     to_float(true, c >> shift));
  };
  return pack_bf16(half(16), half(0));
}
u32 mul_f16x2(u32 a, u32 b) {
  const auto half = [&](int shift) {
    return to_float(false, a >> shift) * to_float(false, b >> shift);
  };
  return pack_f16(half(16), half(0));
}
u32 sub_f16x2(u32 a, u32 b) {
  const auto half = [&](int shift) {
    return to_float(false, a >> shift) - to_float(false, b >> shift);
  };
  return pack_f16(half(16), half(0));
}
u32 sub_sat_f16x2(u32 a, u32 b) {
  const auto half = [&](int shift) {
    const float x = to_float(false, a >> shift) - to_float(false, b >> shift);
    return std::isnan(x) ? 0.0f : std::min(std::max(x, 0.0f), 1.0f);
  };
  return pack_f16(half(16), half(0));
}

u32 e4m3x2_to_f16x2(u16 x) {
  const auto value = [](u32 byte) {
    const int exponent = byte >> 3 & 15;
    const int mantissa = byte & 7;
    if ((byte & 0x7f) == 0x7f) return NAN;
    const double size = exponent == 0 ? mantissa * 0x1p-9 : std::ldexp(8 + mantissa, exponent - 10);
    return static_cast<float>((byte & 0x80) != 0 ? -size : size);
  };
  return pack_f16(value(x >> 8), value(x));
}

u64 timer() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<u64>(now.tv_sec) * 1000000000 + static_cast<u64>(now.tv_nsec);
}

}  // namespace emulator
