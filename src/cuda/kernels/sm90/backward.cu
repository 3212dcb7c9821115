// Backward on Hopper (sm_90a): dK and dV of one tile of keys, and its contribution to dQ, with
// wgmma, TMA and warp specialization.
//
// Grid: one block per (tile of 128 keys, key head, sequence), in the order of BlockPlace.
// Persistent Configs: one block per multiprocessor, which computes several tiles
// (backward_items.cuh). A block keeps K, V and f32 dK, dV of its keys and visits the tiles of
// queries that see them, for each query head of the key head, so dK and dV need no further sum over
// heads. A producer warpgroup loads (backward_producer.cuh), and two consumer warpgroups own 64
// keys each (backward_consumer.cuh). After each step, dQ is added to dq_accum in global memory by
// bulk reductions; passes/backward_postprocess.cu converts it. dbias: backward_dbias.cuh.
//
// Config: backward_config.cuh. Shared memory: backward_shared.cuh.
#include "config.cuh"
#include "ptx/grid.cuh"
#include "sm90/backward_consumer.cuh"
#include "sm90/backward_dbias.cuh"
#include "sm90/backward_epilogue.cuh"
#include "sm90/backward_items.cuh"
#include "sm90/backward_producer.cuh"

namespace {

using namespace sm90;

// The shuffle tells the compiler that roles are warp-uniform.
__device__ __forceinline__ int Warp() {
  return __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
}

__device__ __forceinline__ void Produce(const BackwardParams& p, const KeyTile& keys,
                                        unsigned memory, int warp) {
  const BackwardBarriers barriers(memory);
  if (warp == 3) {
    RowLoader::Drain(RowLoader{p, keys, memory, barriers}.Run());
  } else if (warp == 0) {
    if (threadIdx.x % 32 == 0) TileLoader{p, keys, memory, barriers}.Run();
  } else {
    const DbiasStore dbias{p, keys, memory, warp - 1};
    if (threadIdx.x % 32 == 0) {
      DqAdder{p, keys, memory, barriers, warp - 1, dbias}.Run();
      ptx::TmaStoreWait();
    }
    if constexpr (kStoresDbias) {
      __syncwarp();
      ptx::NamedBarrierWait(DqStaged(warp - 1), kDqStagedThreads);
      dbias.ZeroTilesNotVisited();
    }
  }
}

__device__ __forceinline__ void RunItems(const BackwardParams& p, unsigned memory, int warp) {
  if (warp >= 4) {
    ptx::AcquireRegisters<kConsumerRegisters>();
    ComputeItems(p, memory, warp / 4 - 1);
    return;
  }
  ptx::ReleaseRegisters<kProducerRegisters>();
  if (warp == 3) {
    LoadRowsOfItems(p, memory);
  } else if (threadIdx.x % 32 != 0) {
    return;
  } else if (warp == 0) {
    LoadItems(p, memory);
  } else {
    AddItems(p, memory, warp - 1);
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(sm90::kThreads, 1)
    attn_backward_sm90(const __grid_constant__ sm90::BackwardParams p) {
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  const unsigned memory = ptx::SharedAddress(shared_memory);
  if (threadIdx.x == 0) BackwardBarriers(memory).Init();
  __syncthreads();
  ptx::WaitForPrimary();
  if constexpr (kPersistent) {
    RunItems(p, memory, Warp());
    return;
  }
  const KeyTile keys(p, p.common.dq_ordered != 0,
                     shared::SequenceOf(p.common, KeyTile::SequenceIdx(p)),
                     memory + kShared.visits);
  // Past the last row of dK and dV, dbias may still need zeros.
  if (!kStoresDbias && keys.j0 >= keys.seq.rows_kv) return;
  if constexpr (kRowRanges) {
    keys.List(p.common);
    __syncthreads();
  }
  const int warp = Warp();
  if (warp < 4) {
    ptx::ReleaseRegisters<kProducerRegisters>();
    Produce(p, keys, memory, warp);
  } else {
    ptx::AcquireRegisters<kConsumerRegisters>();
    Consumer consumer(p, keys, memory, warp / 4 - 1);
    consumer.Run();
    BackwardEpilogue{consumer}.Run();
  }
}
