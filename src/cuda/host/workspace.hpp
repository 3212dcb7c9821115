// Workspace: what the kernels of a call pass to each other, all of it O(len), except for partial
// sums of a bias gradient. The plan lays it out for any pass; kernels get addresses.
#pragma once

#include <attn/problem.hpp>
#include <cstdint>

#include "cuda/kernels/shared/arguments.cuh"

namespace attn::cuda {

struct Part {
  std::int64_t offset = 0;
  std::int64_t bytes = 0;  // 0: not needed
};

// Symbols as in arguments.cuh; packed tensors have [h, total] for [b, h, n], [total] for [b, n].
struct Workspace {
  Part lse_delta;     // [b, h, n] {f32 lse in units of log2, f32 delta}
  Part row_ranges;    // [b, n] {begin, end}
  Part q_ranges;      // [b, tiles of queries] TileRange
  Part dq_accum;      // f32, see kernels/shared/dq_accum.cuh
  Part dq_semaphore;  // [b, h, tiles of queries, dq_semaphores] u32
  Part dbias_accum;   // f32, see kernels/shared/dbias_accum.cuh
  Part partials;      // [splits, the bias's shape] f32
  Part tile_counter;  // the tile that a persistent block takes next, u32
  Part decode;        // partial results of splits (families/sm80/decode_plan.cpp)
  int dim = 0;        // of dq_accum
  int splits = 1;
  std::int64_t bytes = 0;
  bool dq_ordered = false;
  bool dq_first_stores = false;
  int kv_heads_at_once = 1;
  // dq_accum (unless dq_first_stores), dq_semaphore, dbias_accum and tile_counter begin as zeros in
  // backwards. They are adjacent, padding included.
  [[nodiscard]] std::int64_t zeros_offset() const {
    return (dq_first_stores ? dq_semaphore : dq_accum).offset;
  }
  [[nodiscard]] std::int64_t zeros_bytes() const { return partials.offset - zeros_offset(); }
};

// What a plan's kernels need, whatever the pass.
struct WorkspaceNeeds {
  std::int64_t tile_q = 0;       // queries of a tile; 0: no statistics and ranges of rows and tiles
  int dim = 0;                   // dim_qk of the Config; 0: no dq_accum
  int dq_semaphores = 0;         // of a tile of queries, for one of the next two
  bool dq_ordered = false;       // blocks add to dq_accum in order
  bool dq_first_stores = false;  // the first block stores, so that dq_accum needs no zeros
  int kv_heads_at_once = 1;      // of sm90 backwards: see kernels/sm90/backward_keys.cuh
  int splits = 1;                // partial sums of the bias gradient; 1: none
  bool dbias_accum = false;
  bool tile_counter = false;
};

Workspace lay_out(const Problem& problem, const WorkspaceNeeds& needs);
// The bias gradient's number of elements; of its sums (dbias_accum), whose accumulators are of 8
// queries and 16 keys, and of the sums' rows.
std::int64_t dbias_elements(const Problem& problem);
std::int64_t dbias_accum_elements(const Problem& problem);
std::int64_t dbias_accum_rows(const Problem& problem);
// Whether the sums take at most `bytes` bytes; also correct where their size exceeds 64 bits.
bool dbias_accum_fits(const Problem& problem, std::int64_t bytes);

// Sets the addresses and strides of the workspace's parts in the parameters of kernels.
void place(const Workspace& workspace, const Problem& problem, void* memory, device::Arguments& a);

}  // namespace attn::cuda
