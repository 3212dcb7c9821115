// Barriers of sm90/backward_wide.cu; see backward_barriers.cuh.
#pragma once
#include "ptx/mbarrier.cuh"
#include "ptx/memory.cuh"
#include "ptx/warpgroup.cuh"
#include "sm90/backward_wide_config.cuh"

namespace sm90 {

struct WideBarriers {
  unsigned base;

  enum {
    kKReady,
    kVReady,
    kPReady,  // rounded P; only the warpgroup of dV uses it
    kPFree,
    kExactFree,  // per warp: P in f32 has been read
    kDsReady = kExactFree + 4,
    kDsFree = kDsReady + kDsStages,
    kQReady = kDsFree + kDsStages,
    kQFree = kQReady + kQStages,
    kDoutReady = kQFree + kQStages,
    kDoutFree = kDoutReady + kDoutStages,
    kRowsReady = kDoutFree + kDoutStages,  // with lengths: rows past the sequence's end are zeroed
    kScoresReady = kRowsReady + kQStages,  // bias and mask
    kScoresFree,
    kTurn,               // deterministic, per warpgroup: it may add dQ
    kAdded = kTurn + 2,  // likewise: it has added
    // In a cluster, per warp; the other block's warp is the same one. kExactFree then means that
    // the other block has read its P, so this one may send its part of S there.
    kSReady = kAdded + 2,    // the other block's part of S has arrived
    kDpReady = kSReady + 4,  // the other block's part of dP has arrived
    kDpFree = kDpReady + 4,  // the other block has read this one's part of dP
    kCount = kCluster > 1 ? kDpFree + 4 : kSReady
  };
  static_assert(kCount * 8 <= kShared.visits - kShared.barriers);

  // `memory`: the block's shared memory.
  __device__ __forceinline__ explicit WideBarriers(unsigned memory)
      : base(memory + kShared.barriers) {}

  __device__ __forceinline__ unsigned At(int barrier) const {
    return base + static_cast<unsigned>(8 * barrier);
  }
  __device__ __forceinline__ void Wait(int barrier, int phase) const {
    ptx::BarrierWait(At(barrier), static_cast<unsigned>(phase & 1));
  }
  // Every lane arrives at the other block's barrier, after its own loads.
  __device__ __forceinline__ void ArriveAtPeer(int barrier) const {
    ptx::ArriveAtBlock(ptx::MapShared(At(barrier), ptx::ClusterRank() ^ 1));
  }
  // One lane arrives for the warp, after the accesses and products of all its lanes.
  __device__ __forceinline__ void WarpArrives(int barrier, int lane) const {
    __syncwarp();
    if (lane == 0) ptx::BarrierArrive(At(barrier));
  }

  // Called by one thread; a barrier of the block, or of the cluster, must follow.
  __device__ __forceinline__ void Init() const {
    ptx::BarrierInit(At(kKReady), 1);
    ptx::BarrierInit(At(kVReady), 1);
    ptx::BarrierInit(At(kPReady), 4);
    ptx::BarrierInit(At(kPFree), 4);
    for (int i = 0; i < 4; ++i) ptx::BarrierInit(At(kExactFree + i), 32);
    for (int i = 0; i < kDsStages; ++i) {
      ptx::BarrierInit(At(kDsReady + i), 4);
      ptx::BarrierInit(At(kDsFree + i), 8);
    }
    for (int i = 0; i < kQStages; ++i) {
      ptx::BarrierInit(At(kQReady + i), 1);
      ptx::BarrierInit(At(kQFree + i), 8);
    }
    for (int i = 0; i < kDoutStages; ++i) {
      ptx::BarrierInit(At(kDoutReady + i), 1);
      ptx::BarrierInit(At(kDoutFree + i), 8);
    }
    if constexpr (kLengths) {
      for (int i = 0; i < kQStages; ++i) ptx::BarrierInit(At(kRowsReady + i), 1);
    }
    if constexpr (kScoreTiles) {
      ptx::BarrierInit(At(kScoresReady), 1);
      ptx::BarrierInit(At(kScoresFree), 4);
    }
    if constexpr (kCluster > 1) {
      for (int i = 0; i < 4; ++i) {
        ptx::BarrierInit(At(kSReady + i), 1);
        ptx::BarrierInit(At(kDpReady + i), 1);
        ptx::BarrierInit(At(kDpFree + i), 32);
      }
    }
    if constexpr (kDeterministic) {
      for (int i = 0; i < 2; ++i) {
        ptx::BarrierInit(At(kTurn + i), 1);
        ptx::BarrierInit(At(kAdded + i), 4);
      }
    }
    ptx::BarrierInitFence();
  }
};

// P in f32 passes from a warp of the warpgroup of dV to the same warp of the other warpgroup. Every
// lane that writes arrives at this named barrier; every lane that reads arrives at the mbarrier
// kExactFree. If readers arrived at a named barrier too, racecheck would report later writes as
// hazards.
inline constexpr int kThreadsOfTwoWarps = 64;
__device__ __forceinline__ int ExactReady() {
  return 1 + ptx::RereadThreadIdx() / 32 % 4;
}
// Used in the epilogue: warpgroup 0 waits at the first barrier and arrives at the next one,
// warpgroup 1 the reverse. They cannot both wait at one barrier: bar.sync requires all waiting
// warps to be at the same instruction, and the warpgroups run different code.
inline constexpr int kBarrierOfConsumers = 5;
inline constexpr int kBarrierOfWarpgroup = 7;  // and the next one

}  // namespace sm90
