// Thread block clusters (compute capability 9.0): one function per instruction.
#pragma once

namespace ptx {

// Number of blocks of the cluster along x; 1 without clusters, and on devices before 9.0. There the
// other functions must not be called.
__device__ __forceinline__ unsigned ClusterBlocks() {
#if __CUDA_ARCH__ >= 900
  unsigned blocks;
  asm volatile("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(blocks));
  return blocks;
#else
  return 1;
#endif
}
#if __CUDA_ARCH__ >= 900
// Index of the block in its cluster.
__device__ __forceinline__ unsigned ClusterRank() {
  unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// Barrier of all threads of the cluster; orders their accesses to distributed shared memory.
__device__ __forceinline__ void ClusterBarrier() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// Maps an address in this block's shared memory to the same address in block `rank` of the cluster.
__device__ __forceinline__ unsigned MapShared(unsigned address, unsigned rank) {
  unsigned mapped;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
  return mapped;
}
// Loads from the shared memory of any block of the cluster; `address` comes from MapShared().
__device__ __forceinline__ unsigned LoadCluster32(unsigned address) {
  unsigned value;
  asm volatile("ld.shared::cluster.b32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}
__device__ __forceinline__ float2 LoadCluster64(unsigned address) {
  float2 value;
  asm volatile("ld.shared::cluster.v2.f32 {%0,%1}, [%2];"
               : "=f"(value.x), "=f"(value.y)
               : "r"(address)
               : "memory");
  return value;
}
__device__ __forceinline__ float4 LoadCluster128(unsigned address) {
  float4 value;
  asm volatile("ld.shared::cluster.v4.f32 {%0,%1,%2,%3}, [%4];"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "r"(address)
               : "memory");
  return value;
}
#endif

}  // namespace ptx
