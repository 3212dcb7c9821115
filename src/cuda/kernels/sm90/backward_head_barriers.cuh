// Barriers of sm90/backward_head.cu, and the order of its tiles of keys; see backward_barriers.cuh.
#pragma once
#include "sm90/backward_config.cuh"
#include "sm90/backward_keys.cuh"
#include "sm90/barrier_array.cuh"

namespace sm90 {

inline constexpr int kRowWarps = kTileQ / 32;  // compute delta, one row per lane
inline constexpr int kQueryTiles = attn::device::sm90::kHeadRows / kTileQ;

struct HeadBarriers : BarrierArray {
  enum {
    kKvReady,  // K and V; here and for dS: one per consumer warpgroup
    kKvFree = kKvReady + kWarpgroups,
    kDsReady = kKvFree + kWarpgroups,
    kDsFree = kDsReady + kWarpgroups,
    kQReady = kDsFree + kWarpgroups,
    kQFree = kQReady + kStages,
    kDoutReady = kQFree + kStages,
    kDoutFree = kDoutReady + kStages,
    kOReady = kDoutFree + kStages,
    kOFree,
    kRowsFree,                            // lse and delta of the head have been read
    kRowsReady,                           // lse and delta; one per tile of queries
    kDqAdded = kRowsReady + kQueryTiles,  // one per warp; phases alternate between the warpgroups
    kCount = kDqAdded + 4
  };
  static_assert(kCount * 8 <= attn::device::sm90::kBackwardBarrierBytes);

  // `memory`: the block's shared memory.
  __device__ __forceinline__ explicit HeadBarriers(unsigned memory)
      : BarrierArray{memory + kShared.barriers} {}

  // Called by one thread; a barrier of the block must follow.
  __device__ __forceinline__ void Init() const {
    for (int i = 0; i < kWarpgroups; ++i) {
      ptx::BarrierInit(At(kKvReady + i), 1);
      ptx::BarrierInit(At(kKvFree + i), 4);
      ptx::BarrierInit(At(kDsReady + i), 4);
      ptx::BarrierInit(At(kDsFree + i), 4);
    }
    for (int i = 0; i < kStages; ++i) {
      ptx::BarrierInit(At(kQReady + i), 1);
      ptx::BarrierInit(At(kQFree + i), 4 * kWarpgroups);
      ptx::BarrierInit(At(kDoutReady + i), 1);
      ptx::BarrierInit(At(kDoutFree + i), 4 * kWarpgroups + kRowWarps);
    }
    ptx::BarrierInit(At(kOReady), 1);
    ptx::BarrierInit(At(kOFree), kRowWarps);
    ptx::BarrierInit(At(kRowsFree), 128 * kWarpgroups);
    for (int i = 0; i < kQueryTiles; ++i) ptx::BarrierInit(At(kRowsReady + i), 32 * kRowWarps);
    for (int i = 0; i < 4; ++i) ptx::BarrierInit(At(kDqAdded + i), 32);
    ptx::BarrierInitFence();
  }
};

// Calls visit(keys, n, tile) for the tiles of keys of the block's heads, in the order that all
// roles share: for the block's n-th head, all of its tiles. `tile` counts the tiles of all heads.
template <class Visit>
__device__ __forceinline__ void ForEachKeyTile(const BackwardParams& p, const Visit& visit) {
  const Arguments& a = p.common;
  const unsigned heads = static_cast<unsigned>(a.heads_kv) * static_cast<unsigned>(a.batch);
  const unsigned tiles = KeyTile::NumTiles(a);
  int tile = 0;
  int n = 0;
#pragma unroll 1
  for (unsigned head = blockIdx.x; head < heads; head += gridDim.x, ++n) {
#pragma unroll 1
    for (unsigned of_head = 0; of_head < tiles; ++of_head, ++tile) {
      const unsigned block = head * tiles + of_head;
      visit(KeyTile(p, false, shared::SequenceOf(a, KeyTile::SequenceIdx(p, block)), 0, block), n,
            tile);
    }
  }
}

}  // namespace sm90
