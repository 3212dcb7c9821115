// Access to rows of global memory in chunks of 8 elements per lane, for passes that touch each
// element once and are memory-bound. Loads are separate from conversions, so that several loads can
// be in flight.
#pragma once
#include "ptx/math.cuh"
#include "shared/element.cuh"
#include "shared/sequence.cuh"

namespace shared {

// Lanes that share a row of `dim` elements: 8, 16 or 32, so that a warp holds complete rows.
__device__ __forceinline__ int LanesPerRow(int dim) {
  return dim <= 64 ? 8 : dim <= 128 ? 16 : 32;
}

// Elements [column, column + 8) of a row; zeros past its end. Only f32 uses `high`.
struct RawChunk {
  uint4 low;
  uint4 high;
};

// Only for tensors with vector access, where a row is a multiple of 16 bytes.
__device__ __forceinline__ RawChunk LoadRaw(const StridedTensor& tensor, const char* row,
                                            int column, int dim) {
  const bool wide = tensor.type == config::f32;
  const char* at = row + column * (wide ? 4 : 2);
  RawChunk raw{};
  if (column < dim) raw.low = *reinterpret_cast<const uint4*>(at);
  if (wide && column + 4 < dim) raw.high = *reinterpret_cast<const uint4*>(at + 16);
  return raw;
}

__device__ __forceinline__ void ToFloats(const RawChunk& raw, int type, float (&values)[8]) {
  const unsigned words[8] = {raw.low.x,  raw.low.y,  raw.low.z,  raw.low.w,
                             raw.high.x, raw.high.y, raw.high.z, raw.high.w};
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    const unsigned pair = words[e / 2];
    if (type == config::f32) {
      values[e] = __uint_as_float(words[e]);
    } else if (type == config::bf16) {
      values[e] = e % 2 == 0 ? ptx::Low<config::bf16>(pair) : ptx::High<config::bf16>(pair);
    } else {
      values[e] = e % 2 == 0 ? ptx::Low<config::f16>(pair) : ptx::High<config::f16>(pair);
    }
  }
}

// Loads and converts a chunk of any tensor, with or without vector access.
__device__ __forceinline__ void LoadChunk(const StridedTensor& tensor, const char* row, int column,
                                          int dim, float (&values)[8]) {
  if (tensor.vector != 0) {
    ToFloats(LoadRaw(tensor, row, column, dim), tensor.type, values);
    return;
  }
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    const char* at = row + (column + e) * ElementBytes(tensor.type);
    values[e] = column + e < dim ? LoadElement(at, tensor.type) : 0.0f;
  }
}

__device__ __forceinline__ void StoreChunk(const StridedTensor& tensor, char* row, int column,
                                           int dim, const float (&values)[8]) {
  char* at = row + column * ElementBytes(tensor.type);
  if (tensor.vector == 0) {
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      if (column + e < dim) {
        StoreElement(at + e * ElementBytes(tensor.type), tensor.type, values[e]);
      }
    }
  } else if (tensor.type == config::f32) {
    const float4 low{values[0], values[1], values[2], values[3]};
    const float4 high{values[4], values[5], values[6], values[7]};
    if (column < dim) *reinterpret_cast<float4*>(at) = low;
    if (column + 4 < dim) *reinterpret_cast<float4*>(at + 16) = high;
  } else if (column < dim) {
    unsigned pairs[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      pairs[e] = tensor.type == config::bf16
                     ? ptx::Pack<config::bf16>(values[2 * e], values[2 * e + 1])
                     : ptx::Pack<config::f16>(values[2 * e], values[2 * e + 1]);
    }
    *reinterpret_cast<uint4*>(at) = {pairs[0], pairs[1], pairs[2], pairs[3]};
  }
}

}  // namespace shared
