// Barriers of sm90/backward.cu.
//
// `ready`: the data is in shared memory. `free`: all readers have read it. The n-th use of a ring
// is stage n % 2 in phase n / 2. Readers wait for this phase of `ready`, writers for the previous
// phase of `free`.
#pragma once
#include "ptx/mbarrier.cuh"
#include "sm90/backward_config.cuh"

namespace sm90 {

// Named barrier by which consumers tell RowLoader that lse and delta of a stage are free. All lanes
// that read them arrive with one instruction per warp. Arrivals of all lanes at an mbarrier would
// be processed one by one.
inline constexpr int kRowsFreeThreads = 32 + 128 * kWarpgroups;
__device__ __forceinline__ int RowsFree(int stage) {
  return 1 + stage;
}

// kDbiasStored: named barrier by which a consumer warpgroup tells DqAdder's warp that it stages no
// more dQ, so that zeros may overwrite it. All lanes that staged dQ arrive.
inline constexpr int kDqStagedThreads = 32 + 128;
__device__ __forceinline__ int DqStaged(int warpgroup) {
  return 1 + kStages + warpgroup;
}

// persistent: queue of the tiles of keys that the block computes next (backward_items.cuh). It is
// stored after the barriers.
inline constexpr int kItemSlots = 4;
inline constexpr int kItemsAt = attn::device::sm90::kBackwardBarrierBytes - 4 * kItemSlots;
inline constexpr int kItemReaders = 4 * kWarpgroups + 3;  // warps, without TileLoader's

struct BackwardBarriers {
  unsigned base;

  enum {
    kKReady,
    kVReady,
    kQReady,
    kRowsReady = kQReady + kStages,  // lse and delta
    kQFree = kRowsReady + kStages,
    kDoutReady = kQFree + kStages,
    kDoutFree = kDoutReady + kStages,
    kDsReady = kDoutFree + kStages,
    kDqReady = kDsReady + kStages,  // per warpgroup: its dQ is staged
    kDqFree = kDqReady + kWarpgroups,
    kScoresReady = kDqFree + kWarpgroups,  // bias and mask
    kScoresFree,
    kKvFree,     // persistent: K and V
    kItemReady,  // persistent: slots of ItemQueue
    kItemFree = kItemReady + kItemSlots,
    kCount = kItemFree + kItemSlots
  };
  static_assert(kCount * 8 <= kItemsAt);

  // `memory`: the block's shared memory.
  __device__ __forceinline__ explicit BackwardBarriers(unsigned memory)
      : base(memory + kShared.barriers) {}

  __device__ __forceinline__ unsigned At(int barrier) const {
    return base + static_cast<unsigned>(8 * barrier);
  }
  __device__ __forceinline__ void Wait(int barrier, int phase) const {
    ptx::BarrierWait(At(barrier), static_cast<unsigned>(phase & 1));
  }
  __device__ __forceinline__ void Arrive(int barrier) const { ptx::BarrierArrive(At(barrier)); }

  // Called by one thread; a barrier of the block must follow.
  __device__ __forceinline__ void Init() const {
    constexpr int kConsumerWarps = 4 * kWarpgroups;
    ptx::BarrierInit(At(kKReady), 1);
    ptx::BarrierInit(At(kVReady), 1);
    for (int i = 0; i < kStages; ++i) {
      ptx::BarrierInit(At(kQReady + i), 1);
      ptx::BarrierInit(At(kRowsReady + i), 32);
      ptx::BarrierInit(At(kQFree + i), kConsumerWarps);
      ptx::BarrierInit(At(kDoutReady + i), 1);
      ptx::BarrierInit(At(kDoutFree + i), kConsumerWarps);
      ptx::BarrierInit(At(kDsReady + i), kConsumerWarps);
    }
    for (int i = 0; i < kWarpgroups; ++i) {
      ptx::BarrierInit(At(kDqReady + i), 4);
      ptx::BarrierInit(At(kDqFree + i), 1);
    }
    if constexpr (kScoreTiles) {
      ptx::BarrierInit(At(kScoresReady), 1);
      ptx::BarrierInit(At(kScoresFree), kConsumerWarps);
    }
    if constexpr (kPersistent) {
      ptx::BarrierInit(At(kKvFree), kConsumerWarps);
      for (int i = 0; i < kItemSlots; ++i) {
        ptx::BarrierInit(At(kItemReady + i), 1);
        ptx::BarrierInit(At(kItemFree + i), kItemReaders);
      }
    }
    ptx::BarrierInitFence();
  }
};

}  // namespace sm90
