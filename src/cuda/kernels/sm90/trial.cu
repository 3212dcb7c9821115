// Trial kernels of the family sm90. They use what sm80 does not have (TMA, mbarrier, clusters,
// programmatic dependent launch), so that planning, launching and capturing such kernels stays
// tested.
//
// attn_trial_copy: grid: one block per (tile of kRows rows, head, batch), tiles fastest; clusters
// of 2 along the tiles. A block loads its tile by TMA, and writes the tile of the other block of
// its cluster, which it reads from distributed shared memory.
//
// attn_trial_primary, attn_trial_secondary: one block each, launched in this order. The primary
// waits for a flag, which the secondary raises before it waits for the primary. The primary sees
// the flag before its timeout only if both run at the same time, which requires programmatic
// dependent launch.
// Config: none.
#include "config.cuh"
#include "ptx/cluster.cuh"
#include "ptx/grid.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/memory.cuh"
#include "ptx/tma.cuh"
#include "sm90/trial.cuh"

using namespace attn::device::trial;

extern "C" __global__ void __launch_bounds__(kThreads)
    attn_trial_copy(const __grid_constant__ CopyParameters p) {
  __shared__ __align__(128) unsigned tile[kTileBytes / 4];
  __shared__ unsigned long long barrier;
  const int tiles = p.rows / kRows;
  const int tile_idx = static_cast<int>(blockIdx.x) % tiles;
  const int head = static_cast<int>(blockIdx.x) / tiles % p.heads;
  const int batch = static_cast<int>(blockIdx.x) / tiles / p.heads;
  const unsigned loaded = ptx::SharedAddress(&barrier);
  if (threadIdx.x == 0) {
    ptx::BarrierInit(loaded, 1);
    ptx::BarrierInitFence();
    ptx::BarrierExpect(loaded, kTileBytes);
    ptx::TmaLoad(ptx::SharedAddress(tile), &p.map, loaded, 0, tile_idx * kRows, head, batch,
                 ptx::kEvictFirst);
  }
  __syncthreads();  // the barrier is initialized
  ptx::BarrierWait(loaded, 0);
  ptx::ClusterBarrier();  // both tiles have arrived
  const unsigned peer = ptx::ClusterRank() ^ 1;
  const unsigned from = ptx::MapShared(ptx::SharedAddress(tile), peer);
  const int peer_tile = tile_idx ^ 1;
  for (int n = static_cast<int>(threadIdx.x); n < kTileBytes / 4; n += kThreads) {
    const int row = peer_tile * kRows + n / (kColumns / 2);
    p.to[((1ll * batch * p.rows + row) * p.heads + head) * (kColumns / 2) + n % (kColumns / 2)] =
        ptx::LoadCluster32(from + 4u * static_cast<unsigned>(n));
  }
  ptx::ClusterBarrier();  // the peer has read this block's tile
}

namespace {

__device__ __forceinline__ long long Nanoseconds() {
  long long now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(32)
    attn_trial_primary(const __grid_constant__ OverlapParameters p) {
  ptx::LaunchDependents();
  if (threadIdx.x != 0) return;
  const long long start = Nanoseconds();
  bool seen = false;
  while (!seen && Nanoseconds() - start < p.timeout_ns) seen = ptx::LoadAcquire(p.flag) != 0;
  *p.seen = seen ? 1 : 0;
}

extern "C" __global__ void __launch_bounds__(32)
    attn_trial_secondary(const __grid_constant__ OverlapParameters p) {
  if (threadIdx.x == 0) ptx::AddRelease(p.flag, 1);
  ptx::WaitForPrimary();
}
