// Of portable/backward.cu: what it adds to f32 sums in global memory, of dq and of the bias's
// gradient.
#pragma once
#include "portable/backward_scores.cuh"
#include "shared/bias_sums.cuh"
#include "shared/query_sums.cuh"

namespace backward {

// Part of dQ = dS K of the block's keys: what a warp has of the tile's queries and dims. What is
// made of the thread's number is made each time, as dK and dV leave no registers to keep it.
constexpr int kSumM = kSumQueries / 16;
constexpr int kSumN = kSumDims / 8;
using QuerySums = float[kSumM][kSumN][4];

__device__ __forceinline__ void MultiplyQuery(unsigned ds_tile, unsigned k_tile, QuerySums& dq) {
  const int thread = ptx::ThreadAnew();
  const int lane = thread % 32;
  const int query = thread / 32 % kSumWarps * kSumQueries;
  const int dim = thread / 32 / kSumWarps * kSumDims;
  constexpr bool kFolded = IsPowerOfTwo(kSumDims);
  const auto ds_lane = FragmentLane<kTileQ>::ColumnsFirst(lane).Behind(query / 8);
  const auto k_lane = FragmentLane<kDimQk>::RowsFirst(lane).Behind(kFolded ? dim / 8 : 0);
#pragma unroll
  for (int k = 0; k < kTileKv / 16; ++k) {
    unsigned x[kSumM][4];
#pragma unroll
    for (int m = 0; m < kSumM; ++m) {
      ptx::LoadMatrixTransposed(x[m], ds_lane.At(ds_tile, 16 * k, 2 * m));
    }
    Multiply<kDtype>(x, k_lane, k_tile, 16 * k, kFolded ? 0 : dim / 8, dq, k == 0);
  }
}

// Adds it to the f32 sums of the tile's queries, of which `left` are there; scale comes later. How
// the sums lie: shared/query_sums.cuh.
__device__ __forceinline__ void AddQuery(float* sums, int left, const QuerySums& dq) {
  const int thread = ptx::ThreadAnew();
  const int query = thread / 32 % kSumWarps * kSumQueries;
  const int dim = thread / 32 / kSumWarps * kSumDims;
  sums += query * kDimQk + dim * 16 + thread % 32 * 4;
#pragma unroll
  for (int m = 0; m < kSumM; ++m) {
    if (query + 16 * m >= left) continue;
#pragma unroll
    for (int n = 0; n < kSumN; ++n) {
      const float(&c)[4] = dq[m][n];
      ptx::AddGlobal(sums + 16 * m * kDimQk + 128 * n, c[0], c[1], c[2], c[3]);
    }
  }
}

// Adds ds of kChunk queries from `query` on to the sums of the bias's gradient.
__device__ __forceinline__ void AddBias(const Arguments& a, const Step& step, const Entry& entry,
                                        int head, int query, const Scores& ds) {
  const int lane = ptx::ThreadAnew() % 32;
  char* sums = BiasSumAddress(a, entry.b, head, step.i0 + query, step.j0) + 16 * lane;
#pragma unroll
  for (int n = 0; n < kBlocksN; ++n, sums += BiasSumStride(a)) {
    if (query + 8 * n >= step.left) continue;
#pragma unroll
    for (int m = 0; m < kBlocksS; ++m) {
      if (step.j0 + 16 * m >= entry.len_kv) continue;
      const float(&c)[4] = ds[m][n];
      ptx::AddGlobal(reinterpret_cast<float*>(sums + 512 * m), c[0], c[1], c[2], c[3]);
    }
  }
}

}  // namespace backward
