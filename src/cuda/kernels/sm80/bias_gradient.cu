// dbias where backward.cu does not accumulate it: recomputes dS from q, k, v, dout and lse_delta
// and sums it over the dimensions that the bias broadcasts. This takes two more matrix products but
// no atomics, so it is deterministic for any broadcast shape. It needs no workspace other than the
// partial sums of the splits.
//
// Grid: one block per (split of the sum, tile of the bias's queries and keys, head and sequence of
// the bias); a dimension that the bias broadcasts counts as one. A block sums dS of its tile over
// all visits: a visit is one (sequence, head, tile of queries, tile of keys) that the tile of the
// bias applies to. A warp owns 16 or 32 queries. If queries or keys are broadcast, rows or columns
// of the tile are summed at the end. With several splits the sums go to a.partials, and
// passes/bias_gradient_sum.cu adds them.
//
// The tiles of the next visit are loaded during the current one. With two stages, all of them are
// loaded at its start. With one stage, dout and v of the current visit are loaded while S is
// computed, and q and k of the next visit after that.
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
  const BlockWork work = BlockWorkOf(a);
  Visits visits(a, work);
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
  __syncthreads();  // all warps have read the tiles; the sums overlay them
  ReduceBroadcast(work.full_q, work.full_kv, warp, reinterpret_cast<float*>(memory), sums);
  WriteSums(a, work, warp, sums, base);
}
