// The mbarriers of a block, 8 bytes each, in shared memory from `base` on.
#pragma once
#include "ptx/mbarrier.cuh"

namespace sm90 {

struct BarrierArray {
  unsigned base;

  __device__ __forceinline__ unsigned At(int barrier) const {
    return base + static_cast<unsigned>(8 * barrier);
  }
  __device__ __forceinline__ void Wait(int barrier, int phase) const {
    ptx::BarrierWait(At(barrier), static_cast<unsigned>(phase & 1));
  }
  // One lane arrives for the warp, after the accesses of all its lanes.
  __device__ __forceinline__ void ArriveByWarp(int barrier) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::BarrierArrive(At(barrier));
  }
};

}  // namespace sm90
