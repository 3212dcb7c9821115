// Barriers of sm90/bias_gradient.cu.
//
// `ready`: the data is in shared memory. `free`: all readers have read it. The n-th use of a ring
// is stage n % stages in phase n / stages. Readers wait for this phase of `ready`, writers for the
// previous phase of `free`.
#pragma once
#include "sm90/barrier_array.cuh"
#include "sm90/bias_gradient_config.cuh"

namespace sm90::bias_gradient {

// Named barriers: of all consumers, and of a warpgroup.
inline constexpr int kConsumersBarrier = 1;
__device__ __forceinline__ int WarpgroupBarrier(int warpgroup) {
  return kConsumersBarrier + 1 + warpgroup;
}

struct Barriers : BarrierArray {
  enum {
    kBiasReady,
    kQkReady,
    kQkFree = kQkReady + kStagesQk,
    kVoReady = kQkFree + kStagesQk,
    kVoFree = kVoReady + kStagesVo,
    kRowsReady = kVoFree + kStagesVo,  // lse, delta and the mask
    kRowsFree = kRowsReady + kStagesVo,
    kCount = kRowsFree + kStagesVo
  };
  static_assert(kCount * 8 <= attn::device::sm90::kBiasGradientBarrierBytes);

  // `memory`: the block's shared memory.
  __device__ __forceinline__ explicit Barriers(unsigned memory)
      : BarrierArray{memory + kShared.barriers} {}

  // Called by one thread; a barrier of the block must follow.
  __device__ __forceinline__ void Init() const {
    constexpr int kConsumerWarps = 4 * kWarpgroups;
    ptx::BarrierInit(At(kBiasReady), 1);
    for (int i = 0; i < kStagesQk; ++i) {
      ptx::BarrierInit(At(kQkReady + i), 1);
      ptx::BarrierInit(At(kQkFree + i), kConsumerWarps);
    }
    for (int i = 0; i < kStagesVo; ++i) {
      ptx::BarrierInit(At(kVoReady + i), 1);
      ptx::BarrierInit(At(kVoFree + i), kConsumerWarps);
      // Every lane arrives after its own accesses. racecheck does not know that __syncwarp() orders
      // the accesses of other lanes before one lane's arrival.
      ptx::BarrierInit(At(kRowsReady + i), 32);
      ptx::BarrierInit(At(kRowsFree + i), 128 * kWarpgroups);
    }
    ptx::BarrierInitFence();
  }
};

}  // namespace sm90::bias_gradient
