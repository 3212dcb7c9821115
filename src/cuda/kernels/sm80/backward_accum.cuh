// sm80/backward.cu: additions to the f32 sums in global memory, dq_accum and dbias_accum, and the
// semaphore that orders the additions to dq_accum in deterministic calls.
#pragma once
#include "shared/dbias_accum.cuh"
#include "shared/dq_accum.cuh"
#include "sm80/backward_scores.cuh"

namespace sm80::backward {

// The contribution of the block's keys to dQ = dS K. A warp computes kDqQueries queries and kDqDims
// dims of the tile, kDqDimsPerPass of the dims at a time, starting at `first_dim`. Each function
// re-reads the thread index: dK and dV leave no registers to keep values derived from it.
constexpr int kDqBlocksM = kDqQueries / 16;
constexpr int kDqBlocksN = kDqDimsPerPass / 8;
using DqTile = float[kDqBlocksM][kDqBlocksN][4];

__device__ __forceinline__ void MultiplyDqF32(unsigned ds_tile, unsigned k_tile, int first_dim,
                                              DqTile& dq) {
  const int thread = ptx::RereadThreadIdx();
  const int lane = thread % 32;
  const int query = thread / 32 % kDqWarps * kDqQueries;
  const int dim = thread / 32 / kDqWarps * kDqDims + first_dim;
#pragma unroll
  for (int m = 0; m < kDqBlocksM; ++m)
#pragma unroll
    for (int n = 0; n < kDqBlocksN; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) dq[m][n][e] = 0.0f;
#pragma unroll 1
  for (int key = 0; key < kTileKv; key += 8 * kStepsF32) {
    unsigned x[kStepsF32][kDqBlocksM][kParts][4];
#pragma unroll
    for (int step = 0; step < kStepsF32; ++step)
#pragma unroll
      for (int m = 0; m < kDqBlocksM; ++m)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int row = key + 8 * step + lane % 4 * 2 + e / 2;
          const int column = query + 16 * m + e % 2 * 8 + lane / 4;
          const unsigned raw =
              ptx::LoadShared32(ds_tile + PDsLayout::At(row, column / kChunkElements) +
                                static_cast<unsigned>(column % kChunkElements * kElementBytes));
          unsigned parts[kParts];
          Split<kRoundsTiles>(__uint_as_float(raw), parts);
#pragma unroll
          for (int part = 0; part < kParts; ++part) x[step][m][part][e] = parts[part];
        }
    MultiplyStepsF32<kDimQk, kRoundsTiles>(x, k_tile, key, dim, dq);
  }
}

__device__ __forceinline__ void MultiplyDq(unsigned ds_tile, unsigned k_tile, int first_dim,
                                           DqTile& dq) {
  if constexpr (kF32) return MultiplyDqF32(ds_tile, k_tile, first_dim, dq);
  const int thread = ptx::RereadThreadIdx();
  const int lane = thread % 32;
  const int query = thread / 32 % kDqWarps * kDqQueries;
  const int dim = thread / 32 / kDqWarps * kDqDims + first_dim;
  constexpr bool kFoldsChunk = IsPowerOfTwo(kDqDimsPerPass);
  const auto ds_lane = FragmentLane<kTileQ>::ColumnsFirst(lane).StartingAt(query / 8);
  const auto k_lane = FragmentLane<kDimQk>::RowsFirst(lane).StartingAt(kFoldsChunk ? dim / 8 : 0);
#pragma unroll
  for (int k = 0; k < kTileKv / 16; ++k) {
    unsigned x[kDqBlocksM][4];
#pragma unroll
    for (int m = 0; m < kDqBlocksM; ++m) {
      ptx::LoadMatrixTransposed(x[m], ds_lane.At(ds_tile, 16 * k, 2 * m));
    }
    Multiply<kDtype>(x, k_lane, k_tile, 16 * k, kFoldsChunk ? 0 : dim / 8, dq, k == 0);
  }
}

// Adds dq to the accumulators of a tile of queries; the first `num_queries` queries exist.
// backward_postprocess applies the scale.
__device__ __forceinline__ void AddDq(float* accum, int num_queries, int first_dim,
                                      const DqTile& dq) {
  const int thread = ptx::RereadThreadIdx();
  const int query = thread / 32 % kDqWarps * kDqQueries;
  const int dim = thread / 32 / kDqWarps * kDqDims + first_dim;
  accum += query * kDimQk + dim * 16 + thread % 32 * 4;
#pragma unroll
  for (int m = 0; m < kDqBlocksM; ++m) {
    if (query + 16 * m >= num_queries) continue;
#pragma unroll
    for (int n = 0; n < kDqBlocksN; ++n) {
      const float(&c)[4] = dq[m][n];
      ptx::AddGlobal(accum + 16 * m * kDimQk + 128 * n, c[0], c[1], c[2], c[3]);
    }
  }
}

// Adds dQ of a tile of queries and the block's keys to the sums at `accum`. Calls `acquire` before
// the first addition.
template <class Acquire>
__device__ __forceinline__ void AddDqOfTile(unsigned base, float* accum, int num_queries,
                                            const Acquire& acquire) {
#pragma unroll 1
  for (int first_dim = 0; first_dim < kDqDims; first_dim += kDqDimsPerPass) {
    DqTile dq;
    MultiplyDq(base + kShared.ds, base + kShared.k, first_dim, dq);
    if (first_dim == 0) acquire();
    AddDq(accum, num_queries, first_dim, dq);
  }
}

// Adds ds of kChunk queries, from `query` of the warp's part on, to dbias_accum.
__device__ __forceinline__ void AddDbias(const Arguments& a, const ScoreContext& context,
                                         const Sequence& seq, int head, int query,
                                         const Scores& ds) {
  const int lane = ptx::RereadThreadIdx() % 32;
  char* accum =
      DbiasAccumAddress(a, BiasEntry(a, seq.idx), head, context.i0 + query, context.j0) + 16 * lane;
#pragma unroll
  for (int n = 0; n < kBlocksN; ++n, accum += DbiasAccumStride(a)) {
    if (query + 8 * n >= context.num_queries) continue;
#pragma unroll
    for (int m = 0; m < kBlocksS; ++m) {
      if (context.j0 + 16 * m >= seq.len_kv) continue;
      const float(&c)[4] = ds[m][n];
      ptx::AddGlobal(reinterpret_cast<float*>(accum + 512 * m), c[0], c[1], c[2], c[3]);
    }
  }
}

// dq_semaphore: one counter per tile of dq_accum, of the blocks that have added to it. It orders
// their additions from the last tile of keys to the first; under a causal mask this is the order in
// which blocks reach a tile of queries. Used only if the call is deterministic. A block releases a
// semaphore one step after its additions. By then they have reached memory, so the fence does not
// stall. Acquire() notes the semaphore in shared memory; Release() must follow a __threadfence() of
// all threads and a barrier of the block.
class DqSemaphore {
 public:
  __device__ __forceinline__ DqSemaphore(const Arguments& a, unsigned char* memory)
      : a_(a), held_(reinterpret_cast<unsigned**>(memory + kShared.semaphore)) {
    if (threadIdx.x == 0) *held_ = nullptr;
  }

  // Waits until `num_before` blocks have added; lane 0 of every warp polls. Call only if enabled().
  __device__ __forceinline__ void Acquire(unsigned* semaphore, unsigned num_before) const {
    if (Lane() == 0) {
      while (ptx::LoadAcquire(semaphore) != num_before) {
      }
    }
    __syncwarp();
    if (threadIdx.x == 0) *held_ = semaphore;
  }
  __device__ __forceinline__ void Fence() const {
    if (enabled()) __threadfence();
  }
  __device__ __forceinline__ void Release() const {
    if (!enabled() || threadIdx.x != 0 || *held_ == nullptr) return;
    ptx::AddRelease(*held_, 1);
    *held_ = nullptr;
  }
  [[nodiscard]] __device__ __forceinline__ bool enabled() const {
    return a_.dq_semaphore != nullptr;
  }

 private:
  const Arguments& a_;
  unsigned** held_;  // in shared memory
};

}  // namespace sm80::backward
