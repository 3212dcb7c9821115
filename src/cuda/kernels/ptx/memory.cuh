// Memory: shared-memory addresses, asynchronous copies, loads, stores and reductions, one function
// per instruction. Addresses of shared memory are 32-bit.
#pragma once

namespace ptx {

__device__ __forceinline__ unsigned SharedAddress(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// Re-reads %tid.x, so that values derived from it are not kept live from one use to the next.
__device__ __forceinline__ int RereadThreadIdx() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}

// Copies 16 bytes to shared memory: reads the first `bytes` bytes and fills the rest with zeros.
__device__ __forceinline__ void CopyAsync(unsigned to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
               :
               : "r"(to), "l"(from), "r"(bytes)
               : "memory");
}
// Copies 4 or 8 bytes, or writes zeros if the source does not exist.
template <int bytes>
__device__ __forceinline__ void CopyAsyncSmall(unsigned to, const void* from, bool exists) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
               :
               : "r"(to), "l"(from), "n"(bytes), "r"(exists ? bytes : 0)
               : "memory");
}
__device__ __forceinline__ void CopyCommit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits until at most n of this thread's groups are pending.
template <int n>
__device__ __forceinline__ void CopyWait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory");
}

__device__ __forceinline__ unsigned LoadShared32(unsigned address) {
  unsigned value;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}
__device__ __forceinline__ unsigned LoadShared16(unsigned address) {
  unsigned short value;
  asm volatile("ld.shared.b16 %0, [%1];" : "=h"(value) : "r"(address) : "memory");
  return value;
}
__device__ __forceinline__ unsigned LoadShared8(unsigned address) {
  unsigned value;
  asm volatile("ld.shared.u8 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}
__device__ __forceinline__ uint2 LoadShared64(unsigned address) {
  uint2 value;
  asm volatile("ld.shared.v2.b32 {%0,%1}, [%2];"
               : "=r"(value.x), "=r"(value.y)
               : "r"(address)
               : "memory");
  return value;
}
__device__ __forceinline__ uint4 LoadShared128(unsigned address) {
  uint4 value;
  asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(address)
               : "memory");
  return value;
}
__device__ __forceinline__ void StoreShared8(unsigned address, unsigned value) {
  asm volatile("st.shared.b8 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}
__device__ __forceinline__ void StoreShared16(unsigned address, unsigned value) {
  asm volatile("st.shared.b16 [%0], %1;" ::"r"(address), "h"(static_cast<unsigned short>(value))
               : "memory");
}
__device__ __forceinline__ void StoreShared32(unsigned address, unsigned value) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}
__device__ __forceinline__ void StoreShared32(unsigned address, float value) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
}
__device__ __forceinline__ void StoreShared128(unsigned address, float x, float y, float z,
                                               float w) {
  asm volatile("st.shared.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(address), "f"(x), "f"(y), "f"(z),
               "f"(w)
               : "memory");
}
__device__ __forceinline__ void StoreShared64(unsigned address, float x, float y) {
  asm volatile("st.shared.v2.f32 [%0], {%1,%2};" ::"r"(address), "f"(x), "f"(y) : "memory");
}

// Barrier of two warps. Only these two use the barrier `id` (1 to 15).
__device__ __forceinline__ void SyncTwoWarps(int id) {
  asm volatile("bar.sync %0, 64;" ::"r"(id) : "memory");
}

// Adds to two adjacent f32 in global memory, 8-byte aligned. One instruction on 9.0 and later.
__device__ __forceinline__ void AddGlobal(float* to, float x, float y) {
#if __CUDA_ARCH__ >= 900
  asm volatile("red.global.add.v2.f32 [%0], {%1,%2};" ::"l"(to), "f"(x), "f"(y) : "memory");
#else
  asm volatile("red.global.add.f32 [%0], %1;" ::"l"(to), "f"(x) : "memory");
  asm volatile("red.global.add.f32 [%0], %1;" ::"l"(to + 1), "f"(y) : "memory");
#endif
}

// Adds to four adjacent f32, 16-byte aligned.
__device__ __forceinline__ void AddGlobal(float* to, float x, float y, float z, float w) {
#if __CUDA_ARCH__ >= 900
  asm volatile("red.global.add.v4.f32 [%0], {%1,%2,%3,%4};" ::"l"(to), "f"(x), "f"(y), "f"(z),
               "f"(w)
               : "memory");
#else
  AddGlobal(to, x, y);
  AddGlobal(to + 2, z, w);
#endif
}

// Loads from L2. L1 is bypassed, because it may hold old values of what other blocks wrote during
// this kernel.
__device__ __forceinline__ float4 LoadGlobalL2(const float4* from) {
  float4 value;
  asm volatile("ld.global.cg.v4.f32 {%0,%1,%2,%3}, [%4];"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "l"(from)
               : "memory");
  return value;
}
__device__ __forceinline__ float2 LoadGlobalL2(const float2* from) {
  float2 value;
  asm volatile("ld.global.cg.v2.f32 {%0,%1}, [%2];"
               : "=f"(value.x), "=f"(value.y)
               : "l"(from)
               : "memory");
  return value;
}

__device__ __forceinline__ unsigned LoadAcquire(const unsigned* from) {
  unsigned value;
  asm volatile("ld.global.acquire.gpu.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}
__device__ __forceinline__ void AddRelease(unsigned* to, unsigned value) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}

}  // namespace ptx
