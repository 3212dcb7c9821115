// Stores and arrivals in the shared memory of another block of the cluster (compute capability
// 9.0): one function per instruction. Addresses come from MapShared().
#pragma once
#include "ptx/cluster.cuh"

namespace ptx {

#if __CUDA_ARCH__ >= 900
// Stores 16 bytes, asynchronously. When they are there, they count towards the bytes that
// `barrier`, of the same block, expects (BarrierExpect).
__device__ __forceinline__ void StoreAsync128(unsigned address, unsigned barrier, float x, float y,
                                              float z, float w) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 "
      "[%0], {%2,%3,%4,%5}, [%1];" ::"r"(address),
      "r"(barrier), "f"(x), "f"(y), "f"(z), "f"(w)
      : "memory");
}
// Arrives after this thread's earlier loads from its own block's shared memory.
__device__ __forceinline__ void ArriveAtBlock(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}
#endif

}  // namespace ptx
