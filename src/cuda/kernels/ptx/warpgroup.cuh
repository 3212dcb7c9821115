// Warpgroups (compute capability 9.0): register budgets, named barriers, stores of fragments; one
// function per instruction.
#pragma once

namespace ptx {

// Both apply to a warpgroup: all of its warps execute them. ptxas ignores them unless the kernel
// has a register limit at entry (`__launch_bounds__(threads, blocks)`).
template <int registers>
__device__ __forceinline__ void ReleaseRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}
// Waits until other warpgroups have released enough registers.
template <int registers>
__device__ __forceinline__ void AcquireRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}

// Named barrier `id` (1 to 15) of `threads` threads. A phase completes when that many threads have
// called NamedBarrierWait() or NamedBarrierArrive().
__device__ __forceinline__ void NamedBarrierWait(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void NamedBarrierArrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Stores four 8 x 8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l
// / 8.
__device__ __forceinline__ void StoreMatrix(unsigned address, unsigned a, unsigned b, unsigned c,
                                            unsigned d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(a), "r"(b), "r"(c), "r"(d)
               : "memory");
}
// The same, with each matrix transposed.
__device__ __forceinline__ void StoreMatrixTransposed(unsigned address, unsigned a, unsigned b,
                                                      unsigned c, unsigned d) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
      "r"(a), "r"(b), "r"(c), "r"(d)
      : "memory");
}

}  // namespace ptx
