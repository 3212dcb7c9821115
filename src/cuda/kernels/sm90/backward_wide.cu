// Backward on Hopper (sm_90a) for dims 129 to 512: dK and dV of one tile of keys, and its
// contribution to dQ, with wgmma, TMA and warp specialization.
//
// In backward.cu a warpgroup owns 64 keys. Here their dK and dV would take all of its registers, so
// the two consumer warpgroups do different work: one computes S, P and dV of all keys of the block
// (backward_wide_values.cuh), the other dP, dS and dK (backward_wide_keys.cuh). P passes from the
// first to the second through shared memory, in f32. Each computes half of dQ and adds it from
// registers to dq_accum in global memory. Staging dQ as in backward.cu would take the shared memory
// of 16 keys or more.
//
// Above dim 256, two blocks of a cluster share a tile of keys. Each has half of the columns of
// every tensor, and so computes half of dK, dV and dQ, and the products of its columns for S and
// dP. They exchange these parts of S and dP through distributed shared memory (AddPeersPart), and
// both compute P and dS.
//
// Options change S in registers, and P on its way through shared memory: backward_wide_values.cuh.
//
// Config: backward_wide_config.cuh. Shared memory: backward_wide_shared.cuh.
#include "config.cuh"
#include "ptx/grid.cuh"
#include "sm90/backward_wide_epilogue.cuh"
#include "sm90/backward_wide_keys.cuh"
#include "sm90/backward_wide_producer.cuh"
#include "sm90/backward_wide_values.cuh"

extern "C" __global__ void __launch_bounds__(sm90::kThreads, 1)
    attn_backward_sm90(const __grid_constant__ sm90::BackwardParams p) {
  using namespace sm90;
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  const unsigned memory = ptx::SharedAddress(shared_memory);
  if (threadIdx.x == 0) WideBarriers(memory).Init();
  __syncthreads();
  if constexpr (kCluster > 1) ptx::ClusterBarrier();
  ptx::WaitForPrimary();
  if constexpr (kLengths || kRowRanges) {
    const WideKeyTile keys(p, memory);
    if (keys.j0 >= keys.seq.rows_kv) return;
    if constexpr (kRowRanges) {
      keys.List(p.common);
      __syncthreads();
    }
  }
  // The shuffle tells the compiler that roles are warp-uniform.
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  // Each role computes the block's keys itself: if roles share them, they spill.
  if (warp < 4) {
    ptx::ReleaseRegisters<kProducerRegisters>();
    const WideKeyTile keys(p, memory);
    if (threadIdx.x == 0) WideLoader{p, keys, memory, WideBarriers(memory)}.Run();
    if (kDeterministic && (warp == 1 || warp == 2) && threadIdx.x % 32 == 0) {
      WideOrderer{p, keys, WideBarriers(memory), warp - 1}.Run();
    }
    if (kLengths && warp == 3) WideZeroer{p, keys, memory, WideBarriers(memory)}.Run();
  } else if (warp < 8) {
    ptx::AcquireRegisters<kConsumerRegisters>();
    const WideKeyTile keys(p, memory);
    ValueConsumer consumer(p, keys, memory);
    consumer.Run();
    WideEpilogue<kDimVo>{consumer, 0}.Run(
        p.common.dv, kDropout ? p.common.keep_scale / kPScale : 1 / kPScale, p.common.dim_vo);
  } else {
    ptx::AcquireRegisters<kConsumerRegisters>();
    const WideKeyTile keys(p, memory);
    KeyConsumer consumer(p, keys, memory);
    consumer.Run();
    WideEpilogue<kDim>{consumer, 1}.Run(p.common.dk, p.common.scale, p.common.dim_qk);
  }
  if constexpr (kCluster > 1) {
    // A block's barriers must exist until the other has arrived there for the last time.
    __syncwarp();
    ptx::ClusterBarrier();
  }
}
