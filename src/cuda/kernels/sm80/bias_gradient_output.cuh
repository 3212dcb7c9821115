// sm80/bias_gradient.cu: writes the sums to the gradient, or to the split's partial sums.
#pragma once
#include "ptx/memory.cuh"
#include "shared/gradient.cuh"
#include "shared/row_chunk.cuh"
#include "sm80/bias_gradient_visits.cuh"
#include "sm80/tile_output.cuh"

namespace sm80::bias_gradient {

// Where the result goes: dbias, or the split's partial sums.
struct Target {
  char* base;
  long long stride_q, stride_kv;
  int type;
  bool vector;  // rows can be written 16 bytes at a time
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

// Stores a tile through shared memory at `tile`, which nothing else uses; a warp has 16 kM of its
// rows.
__device__ __forceinline__ void StoreTile(const Arguments& a, const Target& to, int rows,
                                          int columns, const Scores& sums, unsigned tile) {
  constexpr int kM = kBlocksM;
  constexpr int kN = kBlocksN;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const auto put = [&](const auto& part) {
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r)
#pragma unroll
        for (int n = 0; n < kN; ++n) {
          part.Store(16 * m + 8 * r, 8 * n, sums[m][n][2 * r], sums[m][n][2 * r + 1]);
        }
    __syncthreads();
  };
  const bool plain = a.partials != nullptr || (a.accumulate == 0 && a.nonfinite_count == nullptr);
  if (!kF32 && plain && to.vector && to.type == kDtype && columns % 8 == 0) {
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
      StridedTensor chunk;
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

// If the bias broadcasts keys, sums over the tile's keys into sums[m][0][2 r]. If it broadcasts
// queries, sums over the tile's queries into sums[0][n][e]. The order is fixed: lanes first, then
// warps through `column_sums` [warps][kTileKv] in shared memory, which nothing else uses.
__device__ __forceinline__ void ReduceBroadcast(bool full_q, bool full_kv, int warp,
                                                float* column_sums, Scores& sums) {
  if (!full_kv) {
#pragma unroll
    for (int m = 0; m < kBlocksM; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float sum = 0.0f;
#pragma unroll
        for (int n = 0; n < kBlocksN; ++n) sum += sums[m][n][2 * r] + sums[m][n][2 * r + 1];
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        sums[m][0][2 * r] = sum;
      }
  }
  if (!full_q) {
    __syncthreads();
#pragma unroll
    for (int n = 0; n < kBlocksN; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float sum = 0.0f;
#pragma unroll
        for (int m = 0; m < kBlocksM; ++m) sum += sums[m][n][e] + sums[m][n][2 + e];
#pragma unroll
        for (int distance = 4; distance < 32; distance *= 2) {
          sum += __shfl_xor_sync(~0u, sum, distance);
        }
        if (threadIdx.x % 32 < 4) column_sums[warp * kTileKv + ColumnOf(n) + e] = sum;
      }
    __syncthreads();
#pragma unroll
    for (int n = 0; n < kBlocksN; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float sum = 0.0f;
        for (int w = 0; w < kWarps; ++w) sum += column_sums[w * kTileKv + ColumnOf(n) + e];
        sums[0][n][e] = sum;
      }
  }
}

// Writes the block's result, as ReduceBroadcast() left it, to dbias or to the partial sums.
__device__ __forceinline__ void WriteSums(const Arguments& a, const BlockWork& work, int warp,
                                          const Scores& sums, unsigned base) {
  const long long len_q = work.full_q ? a.max_len_q : 1;
  const long long len_kv = work.full_kv ? a.max_len_kv : 1;
  const long long q0 = 1ll * work.q_tile * kTileQ;
  const long long j0 = 1ll * work.kv_tile * kTileKv;
  Target to;
  if (a.partials != nullptr) {
    // [split][batch][head][query][key] of dbias's own shape.
    const long long plane =
        (1ll * work.split * a.dbias_entries + work.entry) * (work.full_head ? a.heads_q : 1) +
        work.head;
    to = {reinterpret_cast<char*>(a.partials + (plane * len_q + q0) * len_kv + j0), len_kv * 4, 4,
          config::f32, len_kv % 4 == 0};
  } else {
    to = {ScoreAddress(a.dbias, work.entry, work.head, q0, j0), a.dbias.stride_q, a.dbias.stride_kv,
          a.dbias.type, a.dbias.vector != 0};
  }
  const int rows = static_cast<int>(min(len_q - q0, static_cast<long long>(kTileQ)));
  const int columns = static_cast<int>(min(len_kv - j0, static_cast<long long>(kTileKv)));
  if (work.full_q && work.full_kv) {
    StoreTile(a, to, rows, columns, sums, base);
  } else if (work.full_q) {
#pragma unroll
    for (int m = 0; m < kBlocksM; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = warp * kRows + RowOf(m, r);
        if (threadIdx.x % 4 == 0 && row < rows) StoreSum(a, to, row, 0, sums[m][0][2 * r]);
      }
  } else if (threadIdx.x < 4) {
#pragma unroll
    for (int n = 0; n < kBlocksN; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        if (ColumnOf(n) + e < columns) StoreSum(a, to, 0, ColumnOf(n) + e, sums[0][n][e]);
      }
  }
}

}  // namespace sm80::bias_gradient
