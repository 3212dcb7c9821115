// Thread block clusters (compute capability 9.0): one function per instruction.
#pragma once

namespace ptx {

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

}  // namespace ptx
