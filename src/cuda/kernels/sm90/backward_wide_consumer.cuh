// Code that the two consumer warpgroups of sm90/backward_wide.cu share. Each accumulates one
// gradient (dK or dV) of all keys of the block, transposed (dims are rows, keys are columns), and
// computes some of the columns of dQ.
#pragma once
#include "ptx/memory.cuh"
#include "ptx/tma.cuh"
#include "ptx/warpgroup.cuh"
#include "ptx/wgmma.cuh"
#include "shared/dq_accum.cuh"
#include "shared/score.cuh"
#include "sm90/backward_score_terms.cuh"
#include "sm90/backward_wide_barriers.cuh"
#include "sm90/backward_wide_tile.cuh"

namespace sm90 {

// Accumulators of a thread; see ptx/wgmma.cuh.
using Scores = float[kTileKv / 2];  // tile_q x keys
using DqPart = float[64 / 2];       // tile_q x 64 columns

// kOwnDim: the dim of the gradient that the warpgroup accumulates.
template <int kOwnDim>
struct WideConsumer {
  static constexpr int kBlocks = kOwnDim / 64;  // of 64 dims
  using KeyGradient = float[kBlocks][kTileKv / 2];
  const BackwardParams& p;
  const WideKeyTile& keys;
  unsigned base;  // shared memory
  WideBarriers barriers;
  KeyGradient sums{};

  __device__ __forceinline__ WideConsumer(const BackwardParams& params, const WideKeyTile& tile,
                                          unsigned memory)
      : p(params), keys(tile), base(memory), barriers(memory) {}

  // Re-read at each use, because registers are scarce.
  __device__ __forceinline__ static int Lane() { return ptx::RereadThreadIdx() % 32; }
  // Index within the warpgroup.
  __device__ __forceinline__ static int Warp() { return ptx::RereadThreadIdx() / 32 % 4; }
  // Among the consumers: 0 computes dV, 1 dK. The producer has the first four warps.
  __device__ __forceinline__ static int Warpgroup() { return ptx::RereadThreadIdx() / 128 - 1; }

  __device__ __forceinline__ void Release(int barrier) const {
    barriers.WarpArrives(barrier, Lane());
  }
  __device__ __forceinline__ static int DsAt(int step) {
    return kShared.ds + step % kDsStages * kDsBytes;
  }
  // The thread's first query; its second one is 8 rows later.
  __device__ __forceinline__ int Query(int i0) const { return i0 + 16 * Warp() + Lane() / 4; }

  // Loads lse (element 0) or delta (1) of a query; returns `otherwise` past the length.
  __device__ __forceinline__ float LoadRow(int element, int head, int i, float otherwise) const {
    if (i >= keys.seq.len_q) return otherwise;
    return reinterpret_cast<const float*>(
        shared::RowAddress(p.common.lse_delta, keys.seq.idx, keys.seq.first_q + i, head))[element];
  }

  // Waits until rows past the sequence's end are zeroed.
  __device__ __forceinline__ void WaitForRows(const Visit& visit) const {
    if constexpr (kLengths) {
      barriers.Wait(WideBarriers::kRowsReady + visit.step % kQStages, visit.step / kQStages);
    }
  }

  // S = Q K^T or dP = dO V^T
  template <int kInner>
  __device__ __forceinline__ void IssueScores(int queries_at, int keys_at, Scores& to) const {
    const ptx::MatrixDescriptor a(base + static_cast<unsigned>(queries_at), kTileQ * 128);
    const ptx::MatrixDescriptor b(base + static_cast<unsigned>(keys_at), kTileKv * 128);
    ptx::WgmmaFence();
#pragma unroll
    for (int n = 0; n < kInner / 16; ++n) {
      ptx::WgmmaShared<kDtype, kTileKv>(to, a.At(n / 4 * kTileQ * 128 + n % 4 * 32),
                                        b.At(n / 4 * kTileKv * 128 + n % 4 * 32), n > 0);
    }
    ptx::WgmmaCommit();
  }

  // In a cluster: adds the other block's part of S or dP, the products of its columns. `at`: offset
  // of the memory through which they pass, in both blocks. `ready`, `free`: the barriers of warp 0.
  __device__ __forceinline__ void AddPeersPart(int at, int ready, int free, int step,
                                               Scores& s) const {
    if constexpr (kCluster > 1) {
      const unsigned own = PartAt(at);
      const unsigned peer = ptx::ClusterRank() ^ 1;
      const unsigned to = ptx::MapShared(own, peer);
      const unsigned arrived = ptx::MapShared(barriers.At(ready + Warp()), peer);
      if (Lane() == 0) ptx::BarrierExpect(barriers.At(ready + Warp()), kTileKv / 8 * 32 * 16);
      barriers.Wait(free + Warp(), step + 1);
#pragma unroll
      for (int i = 0; i < kTileKv / 8; ++i) {
        ptx::StoreAsync128(to + kExactStep * i, arrived, s[4 * i], s[4 * i + 1], s[4 * i + 2],
                           s[4 * i + 3]);
      }
      barriers.Wait(ready + Warp(), step);
#pragma unroll
      for (int i = 0; i < kTileKv / 8; ++i) {
        const uint4 words = ptx::LoadShared128(own + kExactStep * i);
        s[4 * i] += __uint_as_float(words.x);
        s[4 * i + 1] += __uint_as_float(words.y);
        s[4 * i + 2] += __uint_as_float(words.z);
        s[4 * i + 3] += __uint_as_float(words.w);
      }
    }
  }

  // Issues the parts of dQ of visit `dq_of` and the gradient (dV^T += dO^T P or dK^T += Q^T dS),
  // whose visit may differ, in order. Adds dQ to dq_accum while the gradient is computed.
  // `pairs_at`: P or dS. wait_for_operands() waits for the operands of the gradient.
  template <int kFirstPart, int kParts, class Wait>
  __device__ __forceinline__ void AddDqUnderGradient(const Visit& dq_of, int queries_at,
                                                     int pairs_at, const Wait& wait_for_operands) {
    DqPart dq;
#pragma unroll
    for (int n = 0; n < kParts; ++n) {
      IssueDq(kFirstPart + n, DsAt(dq_of.step), dq);
      if (n == 0) wait_for_operands();
      if (kSplit) {
        IssueGradient(n * kBlocks / kParts, (n + 1) * kBlocks / kParts, queries_at, pairs_at);
        ptx::WgmmaWait<1>();
      } else if (n == 0) {
        IssueGradient(0, kBlocks, queries_at, pairs_at);
        ptx::WgmmaWait<1>();
      } else {
        ptx::WgmmaWait<0>();
      }
      if (n == 0) WaitForTurn(dq_of);
      AddDq(kFirstPart + n, dq_of, dq);
    }
    EndTurn();
    ptx::WgmmaWait<0>();
  }

  // Issues the 64-dim blocks [begin, end) of the gradient.
  __device__ __forceinline__ void IssueGradient(int begin, int end, int queries_at, int pairs_at) {
    const ptx::MatrixDescriptor a(base + static_cast<unsigned>(queries_at), kTileQ * 128);
    const ptx::MatrixDescriptor b(base + static_cast<unsigned>(pairs_at), kTileQ * 128);
    ptx::WgmmaFence();
#pragma unroll
    for (int m = begin; m < end; ++m)
#pragma unroll
      for (int n = 0; n < kTileQ / 16; ++n) {
        ptx::WgmmaShared<kDtype, kTileKv, 1, 0>(sums[m], a.At(m * kTileQ * 128 + n * 16 * 128),
                                                b.At(n * 32), 1);
      }
    ptx::WgmmaCommit();
  }

  // Issues columns 64 part to 64 part + 63 of dQ = dS K.
  __device__ __forceinline__ void IssueDq(int part, int ds_at, DqPart& dq) const {
    const ptx::MatrixDescriptor a(base + static_cast<unsigned>(ds_at), kTileQ * 128);
    const ptx::MatrixDescriptor b(base + static_cast<unsigned>(kShared.k + part * kTileKv * 128),
                                  kTileKv * 128);
    ptx::WgmmaFence();
#pragma unroll
    for (int n = 0; n < kTileKv / 16; ++n) {
      ptx::WgmmaShared<kDtype, 64, 1, 1>(dq, a.At(n * 16 * 128), b.At(n * 16 * 128), n > 0);
    }
    ptx::WgmmaCommit();
  }

  __device__ __forceinline__ void AddDq(int part, const Visit& visit, const DqPart& dq) const {
    const Arguments& a = p.common;
    const int row = visit.i0 + 16 * Warp();
    if (a.dq_accum.base == nullptr || row >= keys.seq.len_q) return;
    float* const to =
        reinterpret_cast<float*>(shared::RowAddress(
            a.dq_accum, keys.seq.idx, shared::DqAccumFirstRow(a, keys.seq) + row, visit.head)) +
        1024 * (Rank() * kDim / 64 + part) + 4 * Lane();
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      ptx::AddGlobal(to + 128 * i, dq[4 * i], dq[4 * i + 1], dq[4 * i + 2], dq[4 * i + 3]);
    }
  }

  // With kDeterministic: waits until the blocks before this one have added to the tile of dQ, and
  // tells WideOrderer that this one has.
  __device__ __forceinline__ void WaitForTurn(const Visit& visit) const {
    if constexpr (kDeterministic) {
      barriers.Wait(WideBarriers::kTurn + Warpgroup(), visit.step);
    }
  }
  __device__ __forceinline__ void EndTurn() const {
    if constexpr (kDeterministic) Release(WideBarriers::kAdded + Warpgroup());
  }

  // The lane's address for StorePairs(), which stores accumulators 0 to 7 transposed, as rows of 64
  // elements in 128-byte swizzle, from `to`.
  __device__ __forceinline__ static unsigned PairsAt(unsigned to) {
    const int row = Lane() % 8;
    const int matrix = Lane() / 8;
    return to + static_cast<unsigned>((8 * (matrix / 2) + row) * 128 +
                                      ((2 * Warp() + matrix % 2) ^ row) * 16);
  }
  // Stores accumulators 8 i to 8 i + 7, packed.
  __device__ __forceinline__ static void StorePairs(unsigned pairs_at, int i,
                                                    const unsigned (&pairs)[4]) {
    ptx::StoreMatrixTransposed(pairs_at + static_cast<unsigned>(i * 16 * 128), pairs[0], pairs[1],
                               pairs[2], pairs[3]);
  }
  // Address of this thread's accumulators in f32, in memory from offset `at`: accumulators 4 i to
  // 4 i + 3 are kExactStep i later.
  static constexpr unsigned kExactStep = 128 * 16;
  __device__ __forceinline__ unsigned PartAt(int at) const {
    return base + static_cast<unsigned>(at + ptx::RereadThreadIdx() % 128 * 16);
  }
  // P in f32
  __device__ __forceinline__ unsigned ExactAt() const { return PartAt(kShared.exact); }
};

}  // namespace sm90
