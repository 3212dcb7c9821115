// The gradient of a bias in sm90/backward.cu, from dS, in one of two ways (`dbias` of the Config):
//   kDbiasStored  No other block adds to the tile, so dS, rounded for dQ and dK, is the tile of
//                 dbias. DqAdder stores it from shared memory by TMA.
//   kDbiasSummed  Consumers add dS in f32, from registers, to dbias_accum in global memory;
//                 passes/bias_gradient_convert.cu converts the sums.
#pragma once
#include "ptx/memory.cuh"
#include "ptx/tma.cuh"
#include "shared/dbias_accum.cuh"
#include "shared/score_entries.cuh"
#include "sm90/backward_config.cuh"
#include "sm90/backward_keys.cuh"

namespace sm90 {

// kDbiasStored: stores the part of one consumer warpgroup, 64 keys.
struct DbiasStore {
  const BackwardParams& p;
  const KeyTile& keys;
  unsigned base;  // shared memory
  int warpgroup;

  // Stores dS, from `stage`, of the tile of queries from i0. Called by the thread that commits the
  // group. dS is complete once the tile's dQ is staged, and stays until that dQ is released.
  __device__ __forceinline__ void Store(int stage, int head, int i0) const {
    StoreFrom(base + kShared.ds + static_cast<unsigned>(stage * kDsBytes + warpgroup * kBytes),
              head, i0);
  }

  // Stores zeros where no query of a tile sees a key of the block, also for queries and keys past
  // the sequence's end. Called by a warp after its last bulk addition of dQ.
  __device__ __forceinline__ void ZeroTilesNotVisited() const {
    static_assert(kBytes <= 4 * kDqPieceBytes);
    const int lane = ptx::RereadThreadIdx() % 32;
    const unsigned zeros = base + kShared.dq + static_cast<unsigned>(warpgroup * 4 * kDqPieceBytes);
#pragma unroll 1
    for (int n = lane; n < kBytes / 16; n += 32) {
      ptx::StoreShared128(zeros + static_cast<unsigned>(16 * n), 0, 0, 0, 0);
    }
    ptx::FenceAsyncProxy();
    __syncwarp();
    if (lane != 0) return;
    const Arguments& a = p.common;
    const int num_tiles = (a.max_len_q + kTileQ - 1) / kTileQ;
#pragma unroll 1
    for (int n = 0; n < num_tiles; ++n) {
      if (keys.Visits(n)) continue;
#pragma unroll 1
      for (int h = 0; h < a.heads_per_kv; ++h) {
        StoreFrom(zeros, keys.head_kv * a.heads_per_kv + h, n * kTileQ);
      }
    }
    ptx::TmaStoreCommit();
    ptx::TmaStoreWait();
  }

 private:
  static constexpr int kBytes = kTileQ * 64 * kOperandBytes;

  __device__ __forceinline__ void StoreFrom(unsigned from, int head, int i0) const {
    const attn::device::ScoreTensor& to = p.common.dbias;
    const int map_head = to.stride_head == 0 ? 0 : head;
    const int entry = to.stride_batch == 0 ? 0 : keys.seq.idx;
#pragma unroll
    for (int n = 0; n < kTileQ / 64; ++n) {
      ptx::TmaStore(&p.dbias, from + static_cast<unsigned>(n * 64 * 128), keys.j0 + 64 * warpgroup,
                    i0 + 64 * n, map_head, entry);
    }
  }
};

// kDbiasSummed: the address to which a warp's dS of a step is added, 16 keys x 8 queries at a time,
// in the order of a thread's accumulators.
struct DbiasSum {
  char* to;
  int num_queries;  // that exist, from the tile's first; 0 if no key exists

  // `i0`: the tile's first query; `j`: the warp's first key.
  __device__ __forceinline__ DbiasSum(const Arguments& a, const Sequence& seq, int head, int i0,
                                      int j)
      : to(shared::DbiasAccumAddress(a, shared::BiasEntry(a, seq.idx), head, i0, j) +
           16 * (ptx::RereadThreadIdx() % 32)),
        num_queries(j < seq.len_kv ? seq.len_q - i0 : 0) {}

  // Adds dS of queries 8 i to 8 i + 7; must be called in ascending order of i.
  __device__ __forceinline__ void Add(const Arguments& a, int i, const float* ds) {
    if (8 * i < num_queries) {
      ptx::AddGlobal(reinterpret_cast<float*>(to), ds[0], ds[1], ds[2], ds[3]);
    }
    to += shared::DbiasAccumStride(a);
  }
};

}  // namespace sm90
