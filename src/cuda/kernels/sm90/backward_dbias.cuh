// The gradient of a bias in sm90/backward.cu, if no other block adds to its tiles (kDbiasStored):
// dS, rounded for dQ and dK, is the tile of dbias. DqAdder stores it by TMA from shared memory.
#pragma once
#include "ptx/tma.cuh"
#include "sm90/backward_config.cuh"
#include "sm90/backward_keys.cuh"

namespace sm90 {

// kDbiasStored: the part of a consumer warpgroup, 64 keys.
struct DbiasStore {
  const BackwardParams& p;
  const KeyTile& keys;
  unsigned base;  // shared memory
  int warpgroup;

  // The tile of queries from i0, whose dS is in `stage`. By the thread that commits the group; once
  // its dQ is staged, dS is complete, and it stays until that dQ is released.
  __device__ __forceinline__ void Store(int stage, int head, int i0) const {
    StoreFrom(base + kShared.ds + static_cast<unsigned>(stage * kDsBytes + warpgroup * kBytes),
              head, i0);
  }

  // Zeros where no query of a tile sees a key of the block, also of queries and keys past the
  // sequence's end. By a warp, after its last bulk addition of dQ.
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

}  // namespace sm90
