// Results on their way out: rows of o, dk, dv through shared memory, so that they are written 16
// bytes at a time; element by element where the tensor is odd or something is asked of elements
// (another type, gradients that are added to, non-finite results replaced).
#pragma once
#include "ptx/memory.cuh"
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

// Rows of a result in shared memory, as f32.
template <int kDim, int kDtype>
struct StagedRows {
  static constexpr int kRowBytes = kDim * 4;
  unsigned tile;

  // Elements (row, column) and (row, column + 1), column even. Chunks of 32 bytes are swizzled by
  // the row, so that the 8 rows of a fragment spread over the banks.
  __device__ static __forceinline__ unsigned At(int row, int column) {
    return static_cast<unsigned>(row * kRowBytes) +
           ((static_cast<unsigned>(column * 4)) ^ (static_cast<unsigned>(row & 3) << 5));
  }
  __device__ __forceinline__ void Put(int row, int column, float x, float y) const {
    ptx::StoreShared64(tile + At(row, column), x, y);
  }

  // All of them to `to`, by threads `thread` of `threads`. `accumulate`: gradients are added to.
  __device__ __forceinline__ void Write(const Arguments& a, const Rows& rows, char* to,
                                        int num_rows, int dim, bool accumulate, int thread,
                                        int threads) const {
    const bool whole =
        rows.vector != 0 && rows.type == kDtype && !accumulate && a.nonfinite_count == nullptr;
    constexpr int kChunks = kDim / 8;
#pragma unroll 1
    for (int n = thread; n < num_rows * kChunks; n += threads) {
      const int row = n / kChunks;
      const int column = n % kChunks * 8;
      if (column >= dim) continue;
      const uint4 low = ptx::LoadShared128(tile + At(row, column));
      const uint4 high = ptx::LoadShared128(tile + At(row, column) + 16);
      char* at = to + row * rows.stride_row + column * ElementBytes(rows.type);
      const unsigned bits[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
      if (whole) {
        uint4 packed;
        packed.x = ptx::Pack<kDtype>(__uint_as_float(bits[0]), __uint_as_float(bits[1]));
        packed.y = ptx::Pack<kDtype>(__uint_as_float(bits[2]), __uint_as_float(bits[3]));
        packed.z = ptx::Pack<kDtype>(__uint_as_float(bits[4]), __uint_as_float(bits[5]));
        packed.w = ptx::Pack<kDtype>(__uint_as_float(bits[6]), __uint_as_float(bits[7]));
        *reinterpret_cast<uint4*>(at) = packed;
        continue;
      }
      const int count = min(8, dim - column);
#pragma unroll 1
      for (int e = 0; e < count; ++e, at += ElementBytes(rows.type)) {
        float value = __uint_as_float(ptx::LoadShared32(tile + At(row, column) + 4 * e));
        if (accumulate) value += LoadElement(at, rows.type);
        StoreElement(at, rows.type, Finite(a, value));
      }
    }
  }
};

}  // namespace shared
