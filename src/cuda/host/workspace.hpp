// Workspace: memory through which the kernels of a call pass data. It is O(len), except for partial
// sums of a bias gradient. The plan computes the layout for any pass; kernels receive addresses.
#pragma once

#include <attn/problem.hpp>
#include <cstdint>

#include "cuda/kernels/shared/arguments.cuh"

namespace attn::cuda {

struct Part {
  std::int64_t offset = 0;
  std::int64_t bytes = 0;  // 0: not needed
};

// Symbols as in arguments.cuh. For packed tensors, [b, h, n] is [h, total] and [b, n] is [total].
struct Workspace {
  Part lse_delta;     // [b, h, n] {f32 lse in units of log2, f32 delta}
  Part row_ranges;    // [b, n] {begin, end}
  Part q_ranges;      // [b, tiles of queries] TileRange
  Part dq_accum;      // f32, see kernels/shared/dq_accum.cuh
  Part dq_semaphore;  // [b, h, tiles of queries, dq_semaphores] u32
  Part dbias_accum;   // f32, see kernels/shared/dbias_accum.cuh
  Part partials;      // [splits, the bias's shape] f32
  Part tile_counter;  // u32, the next tile of the dynamic tile scheduler
  Part decode;        // partial results of splits (families/sm80/decode_plan.cpp)
  int dim = 0;        // columns of dq_accum
  int splits = 1;
  std::int64_t bytes = 0;
  bool dq_ordered = false;
  bool dq_first_stores = false;
  int kv_heads_at_once = 1;
  int kv_heads_reversed = 0;
  // A backward initializes dq_accum (unless dq_first_stores), dq_semaphore, dbias_accum and
  // tile_counter to zero. They are adjacent, so this range covers them, padding included.
  [[nodiscard]] std::int64_t zeros_offset() const {
    return (dq_first_stores ? dq_semaphore : dq_accum).offset;
  }
  [[nodiscard]] std::int64_t zeros_bytes() const { return partials.offset - zeros_offset(); }
};

// The needs of a plan's kernels, for any pass.
struct WorkspaceNeeds {
  std::int64_t tile_q = 0;       // queries per tile; 0: no lse_delta, row_ranges and q_ranges
  int dim = 0;                   // dim_qk of the Config; 0: no dq_accum
  int dq_semaphores = 0;         // per tile of queries, if one of the next two is set
  bool dq_ordered = false;       // blocks add to dq_accum in order
  bool dq_first_stores = false;  // the first block of a tile stores, so dq_accum need not be zero
  int kv_heads_at_once = 1;      // for sm90 backwards: see kernels/sm90/backward_keys.cuh
  int kv_heads_reversed = 0;     // likewise
  int splits = 1;                // partial sums of the bias gradient; 1: none
  bool dbias_accum = false;
  bool tile_counter = false;
};

Workspace lay_out(const Problem& problem, const WorkspaceNeeds& needs);
// The number of elements of dbias; the number of elements and of rows of dbias_accum, which is
// padded to multiples of 8 queries and 16 keys (one accumulator fragment).
std::int64_t dbias_elements(const Problem& problem);
std::int64_t dbias_accum_elements(const Problem& problem);
std::int64_t dbias_accum_rows(const Problem& problem);
// Whether dbias_accum takes at most `bytes` bytes. Correct even if its size overflows 64 bits.
bool dbias_accum_fits(const Problem& problem, std::int64_t bytes);

// Sets addresses and strides of the workspace's parts in the common parameters of kernels.
void place(const Workspace& workspace, const Problem& problem, void* memory, device::Arguments& a);

}  // namespace attn::cuda
