// Loads and stores of single elements of any type, converted to and from the type of arithmetic.
#pragma once

#include <algorithm>
#include <attn/tensor.hpp>
#include <cmath>
#include <cstdint>

#include "core/float16.hpp"
#include "core/float8.hpp"

namespace attn::cpu {

// The element type of T, the type of arithmetic.
template <class T>
inline constexpr DType kArithmetic = sizeof(T) == 4 ? DType::f32 : DType::f64;

template <class T>
inline T LoadElement(DType dtype, const char* address) {
  switch (dtype) {
    case DType::f64: return static_cast<T>(*reinterpret_cast<const double*>(address));
    case DType::f32: return static_cast<T>(*reinterpret_cast<const float*>(address));
    case DType::f16:
      return static_cast<T>(core::f16_to_f32(*reinterpret_cast<const std::uint16_t*>(address)));
    case DType::bf16:
      return static_cast<T>(core::bf16_to_f32(*reinterpret_cast<const std::uint16_t*>(address)));
    case DType::f8e4m3:
      return static_cast<T>(core::f8e4m3_to_f32(*reinterpret_cast<const std::uint8_t*>(address)));
    case DType::f8e5m2:
      return static_cast<T>(core::f8e5m2_to_f32(*reinterpret_cast<const std::uint8_t*>(address)));
    case DType::i8: return static_cast<T>(*reinterpret_cast<const std::int8_t*>(address));
    default: return T(0);
  }
}

// Writes an element with one rounding. accumulate: adds to the stored value before it rounds.
// zero_nonfinite: replaces a non-finite value by 0. Returns whether it did.
template <class T>
inline bool StoreElement(DType dtype, char* address, T value, bool accumulate,
                         bool zero_nonfinite) {
  if (accumulate) value += LoadElement<T>(dtype, address);
  bool replaced = false;
  const auto keep = [&](bool finite) {
    replaced = zero_nonfinite && !finite;
    return !replaced;
  };
  switch (dtype) {
    case DType::f64: {
      const double v = static_cast<double>(value);
      *reinterpret_cast<double*>(address) = keep(std::isfinite(v)) ? v : 0.0;
      break;
    }
    case DType::f32: {
      const float v = static_cast<float>(value);
      *reinterpret_cast<float*>(address) = keep(std::isfinite(v)) ? v : 0.0f;
      break;
    }
    case DType::f16: {
      const std::uint16_t v = core::f32_to_f16(static_cast<float>(value));
      *reinterpret_cast<std::uint16_t*>(address) =
          keep((v & 0x7C00u) != 0x7C00u) ? v : std::uint16_t{0};
      break;
    }
    case DType::bf16: {
      const std::uint16_t v = core::f32_to_bf16(static_cast<float>(value));
      *reinterpret_cast<std::uint16_t*>(address) =
          keep((v & 0x7F80u) != 0x7F80u) ? v : std::uint16_t{0};
      break;
    }
    // 8-bit types are written only when rows are appended to a cache.
    case DType::f8e4m3:
      *reinterpret_cast<std::uint8_t*>(address) = core::f8e4m3_from(static_cast<double>(value));
      break;
    case DType::f8e5m2:
      *reinterpret_cast<std::uint8_t*>(address) = core::f8e5m2_from(static_cast<double>(value));
      break;
    case DType::i8: {
      const double v = static_cast<double>(value);
      *reinterpret_cast<std::int8_t*>(address) =
          std::isnan(v) ? std::int8_t{0}
                        : static_cast<std::int8_t>(std::nearbyint(std::clamp(v, -128.0, 127.0)));
      break;
    }
    default: break;
  }
  return replaced;
}

}  // namespace attn::cpu
