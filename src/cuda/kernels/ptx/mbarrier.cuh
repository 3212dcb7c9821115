// Memory barriers in shared memory (9.0): one function an instruction. A barrier is 8 bytes; its
// phase completes when the expected arrivals and the expected bytes are there.
#pragma once

namespace ptx {

__device__ __forceinline__ void BarrierInit(unsigned barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
// Makes initialized barriers visible to the asynchronous proxy (TMA).
__device__ __forceinline__ void BarrierInitFence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void BarrierArrive(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Arrives, and adds to the bytes that TMA has to write before the phase completes.
__device__ __forceinline__ void BarrierExpect(unsigned barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
// Waits until the phase of this parity is complete. A fresh barrier is in phase 0: waiting for
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
