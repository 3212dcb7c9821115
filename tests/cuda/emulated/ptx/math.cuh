// Arithmetic as the instructions of kernels/ptx/math.cuh do it, near enough.
#pragma once
#include "config.cuh"
#include "core/float16.hpp"

namespace ptx {

inline float Exp2(float x) {
  return std::exp2(x);
}
template <int dtype>
unsigned Half(float value) {
  return dtype == config::bf16 ? attn::core::f32_to_bf16(value) : attn::core::f32_to_f16(value);
}
template <int dtype>
float Float(unsigned bits) {
  const auto half = static_cast<std::uint16_t>(bits);
  return dtype == config::bf16 ? attn::core::bf16_to_f32(half) : attn::core::f16_to_f32(half);
}
template <int dtype>
unsigned Pack(float low, float high) {
  return Half<dtype>(low) | Half<dtype>(high) << 16;
}
template <int dtype>
float Low(unsigned pair) {
  return Float<dtype>(pair & 0xffff);
}
template <int dtype>
float High(unsigned pair) {
  return Float<dtype>(pair >> 16);
}

}  // namespace ptx
