// Elements of tensors as the kernels hold them, and their values as f32.
#pragma once
#include "config.cuh"

namespace shared {

struct Half {
  unsigned short bits;
};
struct Bfloat {
  unsigned short bits;
};

template <int dtype>
struct ElementOf;
template <>
struct ElementOf<config::f32> {
  using Type = float;
};
template <>
struct ElementOf<config::f16> {
  using Type = Half;
};
template <>
struct ElementOf<config::bf16> {
  using Type = Bfloat;
};
template <int dtype>
using Element = typename ElementOf<dtype>::Type;

__device__ inline float ToFloat(float x) {
  return x;
}
__device__ inline float ToFloat(Half x) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(x.bits));
  return value;
}
__device__ inline float ToFloat(Bfloat x) {
  return __uint_as_float(static_cast<unsigned>(x.bits) << 16);
}

}  // namespace shared
