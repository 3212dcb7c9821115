// dbias on Hopper (sm_90a), where backward.cu does not compute it: recomputes dS from q, k, v, dout
// and lse_delta, and sums it over the sequences and heads that share an entry of the bias, with
// wgmma, TMA and warp specialization. Two matrix products per visit; sums have a fixed order.
//
// Grid: one block per (split of the sum, entry and head of the bias, tile of 128 queries x 128
// keys), keys fastest. A block keeps its tile of dbias in registers and loads its tile of the bias
// once. It visits every sequence and head that uses them (bias_gradient_tile.cuh). Two producer
// warps load (bias_gradient_producer.cuh), and two consumer warpgroups own 64 queries each
// (bias_gradient_consumer.cuh). With several splits, passes/bias_gradient_sum.cu adds their partial
// sums.
//
// Config: bias_gradient_config.cuh. Shared memory: bias_gradient_shared.cuh.
#include "config.cuh"
#include "ptx/grid.cuh"
#include "ptx/warpgroup.cuh"
#include "sm90/bias_gradient_consumer.cuh"
#include "sm90/bias_gradient_output.cuh"
#include "sm90/bias_gradient_producer.cuh"

using namespace sm90::bias_gradient;

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    attn_backward_dbias_sm90(const __grid_constant__ BackwardParams p) {
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  const unsigned memory = ptx::SharedAddress(shared_memory);
  const Barriers barriers(memory);
  if (threadIdx.x == 0) barriers.Init();
  __syncthreads();
  ptx::WaitForPrimary();
  const BlockTile tile(p.common);
  // The shuffle tells the compiler that roles are warp-uniform.
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  if (warp >= 4) {
    ptx::AcquireRegisters<kConsumerRegisters>();
    Consumer consumer(p, tile, memory, warp / 4 - 1);
    consumer.Run();
    Output{consumer}.Write();
    return;
  }
  ptx::ReleaseRegisters<kProducerRegisters>();
  if (warp == 0) {
    if (threadIdx.x == 0) TileLoader{p, tile, memory, barriers}.Run();
  } else if (warp == 1) {
    RowLoader{p, tile, memory, barriers}.Run();
  }
}
