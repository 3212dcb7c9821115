// Workspace: what the kernels of a call hand on, all of it O(len) (and the parts of a bias gradient
// that several blocks add up). Laid out by the plan, given to the kernels by addresses.
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
  Part dq_semaphore;  // [b, h, tiles of queries] u32, right behind dq_accum: both begin as zeros
  Part dbias_accum;   // f32, see kernels/shared/dbias_accum.cuh; behind them, to become zeros too
  Part partials;      // [splits, the bias's shape] f32
  Part tile_counter;  // forward: the tile that a persistent block takes next, u32
  int dim = 0;        // of dq_accum
  int splits = 1;
  std::int64_t bytes = 0;
  // The parts from dq_accum on that begin as zeros, to the end of their 256 bytes, which nothing
  // else has.
  [[nodiscard]] std::int64_t zeros_bytes() const { return partials.offset - dq_accum.offset; }
};

struct WorkspaceNeeds {
  std::int64_t tile_q = 0;
  int dim = 0;                // dim_qk of the Config; 0: no dq
  bool dq_semaphore = false;  // dq's sums are made in turns
  int splits = 1;             // parts of the bias gradient
  bool dbias_accum = false;
};

Workspace lay_out(const Problem& problem, const WorkspaceNeeds& needs);
// The bias gradient's number of elements; of its sums (dbias_accum), whose accumulators are of 8
// queries and 16 keys, and of the sums' rows.
std::int64_t dbias_elements(const Problem& problem);
std::int64_t dbias_accum_elements(const Problem& problem);
std::int64_t dbias_accum_rows(const Problem& problem);
// Whether the sums take at most `bytes` bytes; also correct where their size exceeds 64 bits.
bool dbias_accum_fits(const Problem& problem, std::int64_t bytes);

void place(const Workspace& workspace, const Problem& problem, void* memory, device::Arguments& a);

}  // namespace attn::cuda
