// Tiles; see tiling.hpp.
#include "webgpu/host/tiling.hpp"

#include <algorithm>
#include <array>
#include <bit>

#include "webgpu/host/geometry.hpp"

namespace attn::webgpu {
namespace {

std::uint32_t divided_up(std::int64_t n, std::uint32_t by) {
  return static_cast<std::uint32_t>((n + by - 1) / by);
}

// Threads that share a key, 8 dimensions each: few values, for each is a pipeline.
std::uint32_t lanes_of(std::int64_t dim) {
  return std::max(std::bit_ceil(divided_up(dim, 8)), 4u);
}

constexpr std::uint64_t kKeptSlices = 2;  // as the kernels say

}  // namespace

std::uint64_t forward_bytes(const Tiling& t, bool dropout) {
  const std::uint64_t q = std::uint64_t{t.tile_q()} * (t.slice / 4 + 1);
  const std::uint64_t k = q + std::uint64_t{t.slice} * t.columns;
  const std::uint64_t v =
      (t.keep_q ? q : 0) + std::uint64_t{t.tile_kv()} * t.blocks_at_once * t.columns;
  const std::uint64_t scores = std::uint64_t{t.tile_q()} * (t.columns + 1);
  const std::uint64_t keep =
      dropout ? std::uint64_t{t.tile_q() / 16 + 1} * (t.tile_kv() / 16 + 1) * 16 : 1;
  return 16 * (std::max(k, v) + scores) + 4 * (t.tile_q() + keep);
}

// From the fastest to the smallest: 48 KiB, 32 KiB and 16 KiB.
Tiling forward_tiling(const Problem& problem, const DeviceFacts& facts) {
  const bool wide = problem.dim_vo > 128;  // 8 rows of more than 128 accumulators would not fit
  const std::array<Tiling, 5> choices{{
      {8, 16, 32, 1, false},
      {8, 8, 64, 2, false},
      {8, 8, 32, 2, false},
      {4, 16, 32, 1, false},
      {4, 8, 32, 1, false},
  }};
  for (Tiling t : choices) {
    if (t.columns == 16 && !wide) continue;
    if (t.columns == 8 && wide && t.rows == 8) continue;
    t.blocks_at_once = std::min(t.blocks_at_once, divided_up(problem.dim_vo, t.tile_kv()));
    t.keep_q = problem.dim_qk <= t.slice && t.slice == 64;
    if (forward_bytes(t, problem.dropout) <= facts.workgroup_bytes) return t;
  }
  return choices.back();
}

std::uint64_t backward_bytes(BackwardKernel kernel, const BackwardTiling& t,
                             const Problem& problem) {
  const std::uint64_t stride = (t.keep ? kKeptSlices : 1) * t.slice / 4 + 1;
  const std::uint64_t shared = t.keep ? 2 * t.tile_q() * stride : 0;
  const std::uint64_t columns =
      (t.keep ? shared : t.tile_q() * stride) + std::uint64_t{t.slice} * t.columns;
  std::uint64_t pairs = shared + std::uint64_t{t.tile_q()} * (t.columns + 1);
  if (kernel == BackwardKernel::q) {
    pairs += std::uint64_t{t.depth} * divided_up(problem.dim_qk, 4 * t.columns) * t.columns;
  } else if (kernel == BackwardKernel::kv && !t.keep) {
    const std::int64_t dim = std::max(problem.dim_qk, problem.dim_vo);
    pairs += std::uint64_t{t.depth} * divided_up(dim, 8 * t.rows) * 2 * t.rows;
  }
  const std::uint64_t keep =
      problem.dropout ? std::uint64_t{t.tile_q() / 16 + 1} * (t.tile_kv() / 16 + 1) * 16 : 1;
  return 16 * (std::max(columns, pairs) + t.tile_q()) + 4 * keep;
}

// For each kernel and dimensions from the fastest to the smallest; the last fits 16 KiB. Sums in
// registers: 32 floats a block for each of dk and dv, 4 * r a block for dq.
BackwardTiling backward_tiling(BackwardKernel kernel, const Problem& problem,
                               const DeviceFacts& facts) {
  const std::int64_t dim = std::max(problem.dim_qk, problem.dim_vo);
  std::array<BackwardTiling, 3> choices;
  switch (kernel) {
    case BackwardKernel::kv:
      if (dim <= 64) {
        choices = {{{8, 8, 8, 32, 16, true}, {8, 8, 8, 32, 16, false}, {4, 8, 8, 32, 8, false}}};
      } else if (dim <= 128) {
        choices = {{{8, 16, 8, 32, 16, false}, {4, 16, 8, 32, 8, false}, {2, 16, 8, 32, 8, false}}};
      } else {
        choices = {{{4, 16, 8, 32, 4, false}, {2, 16, 8, 32, 4, false}, {2, 16, 8, 16, 4, false}}};
      }
      break;
    case BackwardKernel::q:
      if (dim <= 64) {
        choices = {{{8, 8, 8, 32, 8, true}, {8, 8, 8, 32, 16, false}, {4, 8, 8, 32, 8, false}}};
      } else if (dim <= 128) {
        choices = {{{8, 8, 16, 32, 16, false}, {4, 8, 16, 32, 8, false}, {2, 8, 16, 32, 8, false}}};
      } else {
        choices = {{{4, 8, 16, 32, 4, false}, {2, 8, 16, 32, 4, false}, {2, 8, 16, 16, 4, false}}};
      }
      break;
    case BackwardKernel::bias:
      choices = {{{8, 8, 8, 32, 16, dim <= 64}, {8, 8, 8, 32, 16, false}, {4, 8, 8, 32, 8, false}}};
      break;
  }
  for (const BackwardTiling& t : choices) {
    if (backward_bytes(kernel, t, problem) <= facts.workgroup_bytes) return t;
  }
  return choices.back();
}

void add_tiling_constants(BackwardKernel kernel, const BackwardTiling& t, const Problem& problem,
                          Step& step) {
  step.add_constant("R", t.r);
  step.add_constant("ROWS", t.rows);
  step.add_constant("COLUMNS", t.columns);
  step.add_constant("SLICE", t.slice);
  step.add_constant("KEEP", t.keep ? 1 : 0);
  if (kernel == BackwardKernel::bias) return;
  const std::uint32_t block = kernel == BackwardKernel::q ? 4 * t.columns : 8 * t.rows;
  step.add_constant("BLOCKS_QK", divided_up(problem.dim_qk, block));
  if (kernel == BackwardKernel::kv) {
    step.add_constant("BLOCKS_VO", divided_up(problem.dim_vo, block));
  }
  step.add_constant("DEPTH", t.depth);
}

std::uint32_t DecodeTiling::tile() const {
  return unroll * (threads / lanes);
}

std::uint64_t decode_bytes(const DecodeTiling& t, bool dropout) {
  const std::uint64_t pairs = std::uint64_t{t.tile()} * t.rows;
  const std::uint64_t parts =
      std::max<std::uint64_t>(pairs * (t.lanes + 1), 8ull * (t.threads + 4));
  return 4 * (parts + pairs + (dropout ? pairs : 1)) + 8ull * (t.threads / t.lanes) * t.rows;
}

// As many rows as a key head's queries have, at most 8: each key is then loaded once.
DecodeTiling decode_tiling(const Problem& problem, const DeviceFacts& facts) {
  DecodeTiling t;
  t.lanes = lanes_of(std::max(problem.dim_qk, problem.dim_vo));
  const std::int64_t rows = problem.len_q * (problem.heads_q / problem.heads_kv);
  if (facts.type == AdapterType::cpu) {  // whose compiler takes seconds for the others
    t.threads = 32;
    t.unroll = 1;
  }
  t.rows = rows > 4 ? 8 : rows > 2 ? 4 : rows > 1 ? 2 : 1;
  while (t.unroll > 1 && decode_bytes(t, problem.dropout) > facts.workgroup_bytes) t.unroll /= 2;
  while (t.rows > 1 && decode_bytes(t, problem.dropout) > facts.workgroup_bytes) t.rows /= 2;
  t.subgroups = facts.subgroup_linear && facts.subgroup_size >= t.lanes && t.lanes >= t.rows;
  return t;
}

}  // namespace attn::webgpu
