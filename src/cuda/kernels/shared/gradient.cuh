// Stores gradients to global memory, element by element.
#pragma once
#include "shared/element.cuh"
#include "shared/sequence.cuh"

namespace shared {

// With nonfinite_zero: returns 0 for a non-finite value and counts it.
__device__ __forceinline__ float Finite(const Arguments& a, float value) {
  if (a.nonfinite_count != nullptr && !IsFinite(value)) {
    atomicAdd(a.nonfinite_count, 1u);
    return 0.0f;
  }
  return value;
}

// Stores one element of a gradient. With `accumulate` it is added in f32 to the stored value, and
// the sum is rounded once.
__device__ __forceinline__ void StoreGradient(const Arguments& a, char* at, int type, float value) {
  if (a.accumulate != 0) value += LoadElement(at, type);
  StoreElement(at, type, Finite(a, value));
}

}  // namespace shared
