// Backward on Hopper (sm_90a) for short rows: one block computes all gradients of a head in one
// launch, with wgmma, TMA and warp specialization.
//
// If a head has at most 512 queries of dim 64, f32 dQ of all of them fits in shared memory. A block
// visits the head's tiles of 128 keys in sequence, and for each of them the tiles of 64 queries
// that see it. It computes delta and lse at the first visit of a tile of queries
// (backward_head_producer.cuh) and writes dq at the last (backward_head_consumer.cuh), so no pre-
// or postprocess kernel is needed. The order of sums is fixed.
//
// Grid: at most one block per (head, sequence). A block computes head blockIdx.x and every
// gridDim.x-th head after it. Config: backward_config.cuh. Shared memory: backward_shared.cuh.
#include "config.cuh"
#include "ptx/grid.cuh"
#include "ptx/warpgroup.cuh"
#include "sm90/backward_head_consumer.cuh"
#include "sm90/backward_head_producer.cuh"

namespace {

using namespace sm90;

__device__ __forceinline__ void ComputeHeads(const BackwardParams& p, unsigned memory,
                                             int warpgroup) {
  const HeadBarriers barriers(memory);
  const int last = static_cast<int>(KeyTile::NumTiles(p.common)) - 1;
  int step = 0;
  ForEachKeyTile(p, [&](const KeyTile& keys, int n, int tile) {
    HeadConsumer consumer(p, keys, memory, warpgroup, n, tile);
    step = consumer.Run(step);
    if (keys.j0 / kTileKv == last) ptx::BarrierArrive(barriers.At(HeadBarriers::kRowsFree));
    BackwardEpilogue{consumer}.Run();
  });
}

}  // namespace

extern "C" __global__ void __launch_bounds__(sm90::kThreads, 1)
    attn_backward_sm90(const __grid_constant__ sm90::BackwardParams p) {
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  const unsigned memory = ptx::SharedAddress(shared_memory);
  if (threadIdx.x == 0) HeadBarriers(memory).Init();
  __syncthreads();
  ptx::WaitForPrimary();
  // The shuffle tells the compiler that roles are warp-uniform.
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  if (warp >= 4) {
    ptx::AcquireRegisters<kConsumerRegisters>();
    ComputeHeads(p, memory, warp / 4 - 1);
    return;
  }
  ptx::ReleaseRegisters<kProducerRegisters>();
  if (warp == 0) {
    if (threadIdx.x == 0) HeadLoader{p, memory, HeadBarriers(memory)}.Run();
  } else if (warp <= kRowWarps) {
    RowComputer{p, memory, HeadBarriers(memory), warp - 1}.Run();
  }
}
