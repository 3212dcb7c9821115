// Memory barriers in shared memory (mbarrier, compute capability 9.0): one function per
// instruction. A barrier takes 8 bytes. Its phase completes when all expected arrivals and all
// expected bytes have arrived.
#pragma once

namespace ptx {

__device__ __forceinline__ void BarrierInit(unsigned barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
// Makes initialized barriers visible to the cluster and to the asynchronous proxy (TMA).
__device__ __forceinline__ void BarrierInitFence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void BarrierArrive(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Arrives, and adds `bytes` to the number of bytes that TMA must write before the phase completes.
__device__ __forceinline__ void BarrierExpect(unsigned barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
// Waits until the phase with this parity is complete. A new barrier is in phase 0, so waiting for
// parity 1 returns at once.
__device__ __forceinline__ void BarrierWait(unsigned barrier, unsigned parity) {
  asm volatile(
      "{ .reg .pred p;\n"
      "again: mbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n"
      "@p bra done;\n"
      "bra again;\n"
      "done: }" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

}  // namespace ptx
