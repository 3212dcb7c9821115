// Writes rows of o, dk or dv through shared memory to global memory.
//   PackedRows  Rounded in shared memory, written 16 bytes at a time.
//   StagedRows  f32 in shared memory, written element by element: for tensors without vector
//               access, for other types, for gradients that accumulate, and if non-finite results
//               are replaced.
//
// Both are filled from accumulators of 16 x 8, where a lane holds two adjacent elements of each of
// two rows that are 8 apart. Store() takes the row and column at which the accumulator begins,
// relative to the warp's part. Write() copies row permute(n) of shared memory to row n of the
// result.
#pragma once
#include "ptx/memory.cuh"
#include "shared/arguments.cuh"
#include "shared/gradient.cuh"
#include "sm80/tile.cuh"

namespace sm80 {

// Whether PackedRows can write the tensor.
template <int kDtype>
__device__ __forceinline__ bool WritesPacked(const Arguments& a, const StridedTensor& rows,
                                             bool accumulate) {
  return config::element_access == 0 && rows.vector != 0 && rows.type == kDtype && !accumulate &&
         a.nonfinite_count == nullptr;
}

struct NoPermutation {
  __device__ __forceinline__ int operator()(int row) const { return row; }
};

// kRows rows of a result, rounded to kDtype, in the layout of tile.cuh. Each thread reads all of
// its chunks before it writes any. Reading and writing chunk by chunk took 10 % of the time of a
// block with short rows.
template <int kDim, int kDtype, int kRows, int kThreads>
struct PackedRows {
  static constexpr int kBytes = kRows * kDim * kOperandBytes;
  unsigned tile;

  // A warp's part: kColumns columns from (row, column).
  template <int kColumns>
  struct Part {
    static constexpr bool kFoldsChunk = IsPowerOfTwo(kColumns);
    unsigned tile;
    int chunk;
    FragmentLane<kDim> lane;
    __device__ __forceinline__ void Store(int row, int column, float x, float y) const {
      ptx::StoreShared32(lane.At(tile, row, column / 8 + (kFoldsChunk ? 0 : chunk)),
                         ptx::Pack<kDtype>(x, y));
    }
  };
  template <int kColumns>
  __device__ __forceinline__ Part<kColumns> PartAt(int row, int column) const {
    const int folded = Part<kColumns>::kFoldsChunk ? column / 8 : 0;
    return {tile + static_cast<unsigned>(row * kDim * kOperandBytes), column / 8,
            FragmentLane<kDim>::Pair().StartingAt(folded)};
  }

  // Writes the first `num_rows` rows to `to`, as thread `thread` of kThreads.
  template <class Permute = NoPermutation>
  __device__ __forceinline__ void Write(long long stride_row, char* to, int num_rows, int dim,
                                        int thread, const Permute& permute = {}) const {
    constexpr int kChunks = kDim / 8;
    constexpr int kPasses = kRows * kChunks / kThreads;
    constexpr int kPassesInFlight = kPasses % 8 == 0   ? 8
                                    : kPasses % 6 == 0 ? 6
                                    : kPasses % 4 == 0 ? 4
                                                       : 1;
    // Rows per pass if each thread keeps the same chunk in all passes, else 0.
    constexpr int kStep = kThreads % kChunks == 0 ? kThreads / kChunks : 0;
    static_assert(kRows * kChunks % kThreads == 0);
    const auto row_of = [&](int pass) {
      return kStep > 0 ? thread / kChunks + pass * kStep : (pass * kThreads + thread) / kChunks;
    };
    const auto chunk_of = [&](int pass) {
      return kStep > 0 ? thread % kChunks : (pass * kThreads + thread) % kChunks;
    };
#pragma unroll 1
    for (int pass = 0; pass < kPasses; pass += kPassesInFlight) {
      uint4 chunks[kPassesInFlight];
#pragma unroll
      for (int n = 0; n < kPassesInFlight; ++n) {
        chunks[n] = ptx::LoadShared128(
            tile + TileLayout<kDim>::At(permute(row_of(pass + n)), chunk_of(pass + n)));
      }
#pragma unroll
      for (int n = 0; n < kPassesInFlight; ++n) {
        const int row = row_of(pass + n);
        const int chunk = chunk_of(pass + n);
        if (row < num_rows && chunk * 8 < dim) {
          *reinterpret_cast<uint4*>(to + row * stride_row + chunk * 16) = chunks[n];
        }
      }
    }
  }
};

// Rows of a result of any type, as f32.
template <int kDim, int kDtype>
struct StagedRows {
  static constexpr int kRowBytes = kDim * 4;
  unsigned tile;

  // Chunks of 32 bytes are swizzled by the row, so that the four rows of a half-warp's 8-byte
  // stores hit different banks.
  __device__ static __forceinline__ unsigned At(int row, int column) {
    return static_cast<unsigned>(row * kRowBytes) +
           ((static_cast<unsigned>(column * 4)) ^ (static_cast<unsigned>(row & 3) << 5));
  }

  struct Part {
    unsigned tile;
    int first_row;
    int first_column;
    __device__ __forceinline__ void Store(int row, int column, float x, float y) const {
      ptx::StoreShared64(tile + At(first_row + row, first_column + column), x, y);
    }
  };
  template <int kColumns>
  __device__ __forceinline__ Part PartAt(int row, int column) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    return {tile, row + lane / 4, column + lane % 4 * 2};
  }

  // Writes `num_rows` rows to `to`, as thread `thread` of `threads`. `accumulate`: adds to the
  // stored values.
  template <class Permute = NoPermutation>
  __device__ __forceinline__ void Write(const Arguments& a, const StridedTensor& rows, char* to,
                                        int num_rows, int dim, bool accumulate, int thread,
                                        int threads, const Permute& permute = {}) const {
    constexpr int kChunks = kDim / 8;
#pragma unroll 1
    for (int n = thread; n < num_rows * kChunks; n += threads) {
      const int row = n / kChunks;
      const int column = n % kChunks * 8;
      char* at = to + row * rows.stride_row + column * ElementBytes(rows.type);
      const int count = min(8, dim - column);
      if constexpr (kDtype == config::f32) {
        if (rows.vector != 0 && rows.type == config::f32 && !accumulate &&
            a.nonfinite_count == nullptr) {
          const unsigned from = tile + At(permute(row), column);
          if (count > 0) *reinterpret_cast<uint4*>(at) = ptx::LoadShared128(from);
          if (count > 4) *reinterpret_cast<uint4*>(at + 16) = ptx::LoadShared128(from + 16);
          continue;
        }
      }
#pragma unroll 1
      for (int e = 0; e < count; ++e, at += ElementBytes(rows.type)) {
        float value = __uint_as_float(ptx::LoadShared32(tile + At(permute(row), column) + 4 * e));
        if (accumulate) value += LoadElement(at, rows.type);
        StoreElement(at, rows.type, Finite(a, value));
      }
    }
  }
};

}  // namespace sm80
