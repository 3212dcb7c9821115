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

// Rows of a result in shared memory, packed as a tile of kDtype or, `by_elements`, as f32.
template <int kDim, int kDtype>
struct StagedRows {
  using Layout = TileLayout<kDim>;
  static constexpr int kBytes = kDim * 4;  // of a row, at most
  unsigned tile;
  bool by_elements;

  // Elements (row, column) and (row, column + 1), column even.
  __device__ __forceinline__ void Put(int row, int column, float x, float y) const {
    if (by_elements) {
      ptx::StoreShared64(tile + static_cast<unsigned>((row * kDim + column) * 4), x, y);
    } else {
      ptx::StoreShared32(tile + Layout::At(row, column / 8) + static_cast<unsigned>(column % 8 * 2),
                         ptx::Pack<kDtype>(x, y));
    }
  }

  // All of them to `to`, by threads `thread` of `threads`. `accumulate`: of gradients.
  __device__ __forceinline__ void Write(const Arguments& a, const Rows& rows, char* to,
                                        int num_rows, int dim, bool accumulate, int thread,
                                        int threads) const {
    if (!by_elements) {
#pragma unroll 4
      for (int n = thread; n < num_rows * Layout::kChunks; n += threads) {
        const int row = n / Layout::kChunks;
        const int chunk = n % Layout::kChunks;
        if (chunk * 8 >= dim) continue;
        *reinterpret_cast<uint4*>(to + row * rows.stride_row + chunk * 16) =
            ptx::LoadShared128(tile + Layout::At(row, chunk));
      }
      return;
    }
#pragma unroll 1
    for (int n = thread; n < num_rows * kDim; n += threads) {
      const int row = n / kDim;
      const int column = n % kDim;
      if (column >= dim) continue;
      const unsigned bits = ptx::LoadShared32(tile + static_cast<unsigned>(4 * n));
      char* at = to + row * rows.stride_row + column * ElementBytes(rows.type);
      float value = __uint_as_float(bits);
      if (accumulate) value += LoadElement(at, rows.type);
      StoreElement(at, rows.type, Finite(a, value));
    }
  }
};

}  // namespace shared
