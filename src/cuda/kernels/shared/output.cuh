// Results on their way out: rows of o, dk, dv through shared memory, so that they are written 16
// bytes at a time (PackedRows); element by element, from f32 (StagedRows), where the tensor is odd
// or something is asked of elements (another type, gradients that are added to, non-finite results
// replaced).
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

// Whether PackedRows can write them.
template <int kDtype>
__device__ __forceinline__ bool IsPlain(const Arguments& a, const Rows& rows, bool accumulate) {
  return config::by_elements == 0 && rows.vector != 0 && rows.type == kDtype && !accumulate &&
         a.nonfinite_count == nullptr;
}

// Rows of a result are put into shared memory by accumulators of 16 x 8: a lane has two
// neighbouring elements of two rows, 8 apart. Put() takes where a row and a column of 8 begin, from
// a corner that is the warp's own. Write() takes row n of the result from row place(n) of them.
struct InPlace {
  __device__ __forceinline__ int operator()(int row) const { return row; }
};

// kRows rows of a result, rounded to kDtype, as tile.cuh lays them out. All of a thread's part is
// read before any is written: with one chunk after the other a block of short rows spends a tenth
// of its time here.
template <int kDim, int kDtype, int kRows, int kThreads>
struct PackedRows {
  static constexpr int kBytes = kRows * kDim * 2;
  unsigned tile;

  // A warp's part, of so many columns, at `row` and `column`.
  template <int kColumns>
  struct Part {
    static constexpr bool kFolded = IsPowerOfTwo(kColumns);
    unsigned tile;
    int chunk;
    FragmentLane<kDim> lane;
    __device__ __forceinline__ void Put(int row, int column, float x, float y) const {
      ptx::StoreShared32(lane.At(tile, row, column / 8 + (kFolded ? 0 : chunk)),
                         ptx::Pack<kDtype>(x, y));
    }
  };
  template <int kColumns>
  __device__ __forceinline__ Part<kColumns> PartAt(int row, int column) const {
    const int folded = Part<kColumns>::kFolded ? column / 8 : 0;
    return {tile + static_cast<unsigned>(row * kDim * 2), column / 8,
            FragmentLane<kDim>::Pair().Behind(folded)};
  }

  // The first `num_rows` to `to`, by threads `thread` of kThreads.
  template <class Place = InPlace>
  __device__ __forceinline__ void Write(long long stride_row, char* to, int num_rows, int dim,
                                        int thread, const Place& place = {}) const {
    constexpr int kChunks = kDim / 8;
    constexpr int kPasses = kRows * kChunks / kThreads;
    constexpr int kAtOnce = kPasses % 8 == 0 ? 8 : kPasses % 6 == 0 ? 6 : kPasses % 4 == 0 ? 4 : 1;
    // Rows from one pass to the next, where the thread stays at its chunk.
    constexpr int kStep = kThreads % kChunks == 0 ? kThreads / kChunks : 0;
    static_assert(kRows * kChunks % kThreads == 0);
    const auto row_of = [&](int pass) {
      return kStep > 0 ? thread / kChunks + pass * kStep : (pass * kThreads + thread) / kChunks;
    };
    const auto chunk_of = [&](int pass) {
      return kStep > 0 ? thread % kChunks : (pass * kThreads + thread) % kChunks;
    };
#pragma unroll 1
    for (int pass = 0; pass < kPasses; pass += kAtOnce) {
      uint4 chunks[kAtOnce];
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
        chunks[n] = ptx::LoadShared128(
            tile + TileLayout<kDim>::At(place(row_of(pass + n)), chunk_of(pass + n)));
      }
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
        const int row = row_of(pass + n);
        const int chunk = chunk_of(pass + n);
        if (row < num_rows && chunk * 8 < dim) {
          *reinterpret_cast<uint4*>(to + row * stride_row + chunk * 16) = chunks[n];
        }
      }
    }
  }
};

// Rows of any result, as f32.
template <int kDim, int kDtype>
struct StagedRows {
  static constexpr int kRowBytes = kDim * 4;
  unsigned tile;

  // Chunks of 32 bytes are swizzled by the row, so that the 8 rows of a fragment spread over the
  // banks.
  __device__ static __forceinline__ unsigned At(int row, int column) {
    return static_cast<unsigned>(row * kRowBytes) +
           ((static_cast<unsigned>(column * 4)) ^ (static_cast<unsigned>(row & 3) << 5));
  }

  struct Part {
    unsigned tile;
    int first_row;
    int first_column;
    __device__ __forceinline__ void Put(int row, int column, float x, float y) const {
      ptx::StoreShared64(tile + At(first_row + row, first_column + column), x, y);
    }
  };
  template <int kColumns>
  __device__ __forceinline__ Part PartAt(int row, int column) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    return {tile, row + lane / 4, column + lane % 4 * 2};
  }

  // All of them to `to`, by threads `thread` of `threads`. `accumulate`: gradients are added to.
  template <class Place = InPlace>
  __device__ __forceinline__ void Write(const Arguments& a, const Rows& rows, char* to,
                                        int num_rows, int dim, bool accumulate, int thread,
                                        int threads, const Place& place = {}) const {
    constexpr int kChunks = kDim / 8;
#pragma unroll 1
    for (int n = thread; n < num_rows * kChunks; n += threads) {
      const int row = n / kChunks;
      const int column = n % kChunks * 8;
      char* at = to + row * rows.stride_row + column * ElementBytes(rows.type);
      const int count = min(8, dim - column);
#pragma unroll 1
      for (int e = 0; e < count; ++e, at += ElementBytes(rows.type)) {
        float value = __uint_as_float(ptx::LoadShared32(tile + At(place(row), column) + 4 * e));
        if (accumulate) value += LoadElement(at, rows.type);
        StoreElement(at, rows.type, Finite(a, value));
      }
    }
  }
};

}  // namespace shared
