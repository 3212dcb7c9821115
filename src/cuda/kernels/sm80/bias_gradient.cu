// dbias if backward.cu does not accumulate it: the sum of dS over the dimensions that the bias
// broadcasts, recomputed from q, k, v, dout and lse_delta. Two more products, but no atomics, so it
// is deterministic for any broadcast shape and needs no memory beyond the gradient's own shape.
//
// Grid: one block per (split of the sum, tile of the bias's queries and keys, head and sequence of
// the bias); a broadcast dimension counts once. A block sums dS of its tile over the visits
// (sequence, head, tile of queries, tile of keys) that share the tile; a warp owns 32 queries. If
// queries or keys are broadcast, rows or columns are summed at the end. With several splits the
// sums go to a.partials, which passes/bias_gradient_sum.cu adds.
//
// Tiles of the next visit are loaded while one is computed: with two stages all of them; with one q
// and k as soon as S is done, dout and v while S is computed.
//
// Config: dtype; dim_qk, dim_vo (rounded up); tile_q, tile_kv, warps, stages, blocks; softcap,
// alibi, bias_type, mask, shared_entries, dropout, element_access. Shared memory:
// bias_gradient_shared.cuh.
#include "config.cuh"
#include "ptx/grid.cuh"
#include "sm80/bias_gradient_loads.cuh"
#include "sm80/bias_gradient_output.cuh"
#include "sm80/bias_gradient_scores.cuh"

using namespace sm80;
using namespace sm80::bias_gradient;

extern "C" __global__ void __launch_bounds__(kThreads, config::blocks)
    attn_bias_gradient(const __grid_constant__ Arguments a) {
  ptx::WaitForPrimary();
  extern __shared__ __align__(1024) unsigned char memory[];
  const unsigned base = ptx::SharedAddress(memory);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const Share share = ShareOf(a);
  Visits visits(a, share);
  BiasMask bias_mask(base, warp);
  Scores sums{};
  Visit visit;
  visits.BeginLoad(a, warp, visit);
  bool found = visits.Find(a, warp, visit);
  if (found) {
    LoadQK(a, visit, warp, 0, base);
    bias_mask.Load(a, visit);
    if constexpr (kStages > 1) LoadDoutV(a, visit, warp, 0, base);
  }
  ptx::CopyCommit();
  for (int stage = 0; found; stage = (stage + 1) % kStages) {
    Visit next;
    bool found_next = false;
    Scores s;
    Scores dp;
    const unsigned rows_qk =
        static_cast<unsigned>(stage * kQBytes + warp * kRows * kDimQk * kElementBytes);
    const unsigned rows_vo =
        static_cast<unsigned>(stage * kDoutBytes + warp * kRows * kDimVo * kElementBytes);
    const auto multiply_qk = [&] {
      MultiplyRows<kDimQk>(base + kShared.q + rows_qk,
                           base + kShared.k + static_cast<unsigned>(stage * kKBytes), s);
    };
    const auto multiply_dout_v = [&] {
      MultiplyRows<kDimVo>(base + kShared.dout + rows_vo,
                           base + kShared.v + static_cast<unsigned>(stage * kVBytes), dp);
    };
    ptx::CopyWait<0>();
    visits.BeginLoad(a, warp, next);
    if constexpr (kStages > 1) {
      found_next = visits.Find(a, warp, next);
      if (found_next) {
        LoadQK(a, next, warp, stage ^ 1, base);
        LoadDoutV(a, next, warp, stage ^ 1, base);
      }
      multiply_qk();
    } else {
      __syncthreads();
      LoadDoutV(a, visit, warp, 0, base);
      ptx::CopyCommit();
      multiply_qk();
      ptx::CopyWait<0>();
      found_next = visits.Find(a, warp, next);
      if (found_next) LoadQK(a, next, warp, 0, base);
    }
    ComputeLogP(a, visit, bias_mask.bias_tile, bias_mask.mask_tile, s);
    __syncwarp();  // all lanes have read bias and mask
    if (found_next) bias_mask.Load(a, next);
    ptx::CopyCommit();
    multiply_dout_v();
    AddGradient(a, visit, s, dp, sums);
    visit = next;
    found = found_next;
  }
  ptx::CopyWait<0>();
  __syncthreads();  // all have read the tiles, which the sums overlay
  ReduceBroadcast(share.full_q, share.full_kv, warp, reinterpret_cast<float*>(memory), sums);
  WriteSums(a, share, warp, sums, base);
}
