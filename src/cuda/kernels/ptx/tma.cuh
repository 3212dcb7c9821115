// The Tensor Memory Accelerator (compute capability 9.0): copies of tiles between global and shared
// memory, one function per instruction. A tile's coordinates are (column, row, head, batch), as
// host/tensor_map.hpp describes tensors. Elements outside of the tensor are read as zeros and never
// written.
#pragma once

namespace ptx {

// L2 eviction priorities, as cp.async.bulk encodes them.
inline constexpr unsigned long long kEvictFirst = 0x12F0000000000000ull;
inline constexpr unsigned long long kEvictLast = 0x14F0000000000000ull;

__device__ __forceinline__ void TmaPrefetchMap(const void* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
// Loads a tile. The barrier counts the bytes of the complete tile, even where it exceeds the
// tensor.
__device__ __forceinline__ void TmaLoad(unsigned to, const void* map, unsigned barrier, int column,
                                        int row, int head, int batch, unsigned long long priority) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(to),
      "l"(map), "r"(barrier), "r"(column), "r"(row), "r"(head), "r"(batch), "l"(priority)
      : "memory");
}
__device__ __forceinline__ void TmaStore(const void* map, unsigned from, int column, int row,
                                         int head, int batch) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(
          map),
      "r"(from), "r"(column), "r"(row), "r"(head), "r"(batch)
      : "memory");
}
__device__ __forceinline__ void TmaStoreCommit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Copies contiguous bytes from shared to global memory. Addresses and size are multiples of 16
// bytes. TmaStoreCommit() closes the group.
__device__ __forceinline__ void BulkStore(float* to, unsigned from, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from),
               "r"(bytes)
               : "memory");
}
// Adds contiguous f32 in shared memory to global memory. TmaStoreCommit() closes the group.
__device__ __forceinline__ void BulkAdd(float* to, unsigned from, int bytes) {
  asm volatile(
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to),
      "r"(from), "r"(bytes)
      : "memory");
}
// Waits until this thread's stores have read shared memory.
__device__ __forceinline__ void TmaStoreWaitRead() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
// Waits until this thread's stores are complete.
__device__ __forceinline__ void TmaStoreWait() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
// Orders this thread's ordinary stores to shared memory before later reads by TMA and wgmma.
__device__ __forceinline__ void FenceAsyncProxy() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// Orders TMA's accesses to global memory and this thread's ordinary ones, in both directions.
__device__ __forceinline__ void FenceAsyncProxyGlobal() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

}  // namespace ptx
