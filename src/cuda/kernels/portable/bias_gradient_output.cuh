// Of portable/bias_gradient.cu: how sums get to the gradient, or to a part of it.
#pragma once
#include "ptx/memory.cuh"
#include "shared/output.cuh"
#include "shared/row_chunk.cuh"

namespace shared {

// Where one element of the result goes: of the bias's own shape, or of its part's.
struct Target {
  char* base;
  long long stride_q, stride_kv;
  int type;
  bool vector;  // rows are 16 bytes at a time
};
__device__ __forceinline__ void StoreSum(const Arguments& a, const Target& to, long long i,
                                         long long j, float sum) {
  char* at = to.base + i * to.stride_q + j * to.stride_kv;
  if (a.partials != nullptr) {
    *reinterpret_cast<float*>(at) = sum;
  } else {
    StoreGradient(a, at, to.type, sum);
  }
}

// A whole tile, by way of shared memory that nothing else uses: a warp has 16 kM of its rows.
template <int kThreads, int kDtype, int kM, int kN>
__device__ __forceinline__ void StoreTile(const Arguments& a, const Target& to, int rows,
                                          int columns, const float (&sums)[kM][kN][4],
                                          unsigned tile) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const auto put = [&](const auto& part) {
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r)
#pragma unroll
        for (int n = 0; n < kN; ++n) {
          part.Put(16 * m + 8 * r, 8 * n, sums[m][n][2 * r], sums[m][n][2 * r + 1]);
        }
    __syncthreads();
  };
  const bool plain = a.partials != nullptr || (a.accumulate == 0 && a.nonfinite_count == nullptr);
  if (plain && to.vector && to.type == kDtype && columns % 8 == 0) {
    const PackedRows<8 * kN, kDtype, kThreads / 32 * 16 * kM, kThreads> packed{tile};
    put(packed.template PartAt<8 * kN>(warp * 16 * kM, 0));
    packed.Write(to.stride_q, to.base, rows, columns, static_cast<int>(threadIdx.x));
    return;
  }
  const StagedRows<8 * kN, kDtype> staged{tile};
  put(staged.template PartAt<8 * kN>(warp * 16 * kM, 0));
  constexpr int kChunks = kN;
#pragma unroll 1
  for (int n = static_cast<int>(threadIdx.x); n < rows * kChunks; n += kThreads) {
    const int row = n / kChunks;
    const int column = n % kChunks * 8;
    const unsigned from = tile + staged.At(row, column);
    if (plain && to.vector && column + 8 <= columns) {
      const uint4 low = ptx::LoadShared128(from);
      const uint4 high = ptx::LoadShared128(from + 16);
      const float values[8] = {__uint_as_float(low.x),  __uint_as_float(low.y),
                               __uint_as_float(low.z),  __uint_as_float(low.w),
                               __uint_as_float(high.x), __uint_as_float(high.y),
                               __uint_as_float(high.z), __uint_as_float(high.w)};
      Rows chunk;
      chunk.type = to.type;
      chunk.vector = 1;
      StoreChunk(chunk, to.base + row * to.stride_q, column, columns, values);
      continue;
    }
#pragma unroll 1
    for (int e = 0; e < min(8, columns - column); ++e) {
      StoreSum(a, to, row, column + e, __uint_as_float(ptx::LoadShared32(from + 4 * e)));
    }
  }
}

}  // namespace shared
