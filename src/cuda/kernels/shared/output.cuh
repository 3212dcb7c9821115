// Results on their way out: non-finite elements, gradients that are added to, rows of tensors.
#pragma once
#include "shared/arguments.cuh"
#include "shared/element.cuh"
#include "shared/entry.cuh"
#include "shared/tile.cuh"

namespace shared {

// With nonfinite_zero: counts `value` and makes it 0 where it is not finite.
__device__ __forceinline__ float Finite(const Arguments& a, float value) {
  if (a.nonfinite_count != nullptr && !IsFinite(value)) {
    atomicAdd(a.nonfinite_count, 1u);
    return 0.0f;
  }
  return value;
}

// A gradient's element: added to what is there, in f32 and rounded once, where it is so asked.
__device__ __forceinline__ void StoreGradient(const Arguments& a, char* at, int type, float value) {
  if (a.accumulate != 0) value += LoadElement(at, type);
  StoreElement(at, type, Finite(a, value));
}

}  // namespace shared
