// Elements of tensors as f32, one at a time: for edges of tiles, unaligned strides and small
// passes.
#pragma once
#include "config.cuh"
#include "ptx/math.cuh"

namespace shared {

__device__ __forceinline__ constexpr int ElementBytes(int type) {
  return type == config::f32 ? 4 : 2;
}

// Loads an element of type f32, f16 or bf16; the type is known only at run time.
__device__ __forceinline__ float LoadElement(const char* at, int type) {
  if (type == config::f32) return *reinterpret_cast<const float*>(at);
  const unsigned bits = *reinterpret_cast<const unsigned short*>(at);
  return type == config::bf16 ? ptx::Low<config::bf16>(bits) : ptx::Low<config::f16>(bits);
}

// Rounds to the type and stores.
__device__ __forceinline__ void StoreElement(char* at, int type, float value) {
  if (type == config::f32) {
    *reinterpret_cast<float*>(at) = value;
    return;
  }
  const unsigned pair = type == config::bf16 ? ptx::Pack<config::bf16>(value, 0.0f)
                                             : ptx::Pack<config::f16>(value, 0.0f);
  *reinterpret_cast<unsigned short*>(at) = static_cast<unsigned short>(pair);
}

__device__ __forceinline__ bool IsFinite(float value) {
  return (__float_as_uint(value) & 0x7f800000u) != 0x7f800000u;
}

}  // namespace shared
