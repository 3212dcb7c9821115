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
    kPReady,  // rounded P, of the warpgroup of dV alone
    kPFree,
    kExactFree,  // per warp: P in f32 has been read
    kDsReady = kExactFree + 4,
    kDsFree = kDsReady + kDsStages,
    kQReady = kDsFree + kDsStages,
    kQFree = kQReady + kQStages,
    kDoutReady = kQFree + kQStages,
    kDoutFree = kDoutReady + kDoutStages,
    kRowsReady = kDoutFree + kDoutStages,  // rows past the sequence's end are zeros; with lengths
    kScoresReady = kRowsReady + kQStages,  // bias and mask
    kScoresFree,
    kCount
  };
  static_assert(kCount * 8 <= attn::device::sm90::kWideBarrierBytes);

  // `memory`: the block's shared memory.
  __device__ __forceinline__ explicit WideBarriers(unsigned memory)
      : base(memory + kShared.barriers) {}

  __device__ __forceinline__ unsigned At(int barrier) const {
    return base + static_cast<unsigned>(8 * barrier);
  }
  __device__ __forceinline__ void Wait(int barrier, int phase) const {
    ptx::BarrierWait(At(barrier), static_cast<unsigned>(phase & 1));
  }
  // One lane arrives for the warp, behind what all its lanes and its products have done.
  __device__ __forceinline__ void WarpArrives(int barrier, int lane) const {
    __syncwarp();
    if (lane == 0) ptx::BarrierArrive(At(barrier));
  }

  // By one thread; the block's barrier must follow.
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
    ptx::BarrierInitFence();
  }
};

// P in f32 passes from a warp of the warpgroup of dV to the same warp of the other. Every lane that
// writes arrives at this barrier of bar.sync, every lane that reads at kExactFree: racecheck
// reports later writes as hazards if readers arrive at one of bar.sync.
inline constexpr int kThreadsOfTwoWarps = 64;
__device__ __forceinline__ int ExactReady() {
  return 1 + ptx::RereadThreadIdx() / 32 % 4;
}
// At the end: warpgroup 0 waits at the first and arrives at the next, warpgroup 1 the other way
// round. Both could not wait at one barrier: bar.sync wants all waiting warps at the same
// instruction, and the warpgroups run code of their own.
inline constexpr int kBarrierOfConsumers = 5;
inline constexpr int kBarrierOfWarpgroup = 7;  // and the next

}  // namespace sm90
