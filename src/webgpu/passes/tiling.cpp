// Chooses tile sizes; see tiling.hpp.
#include "webgpu/passes/tiling.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <span>

#include "core/divide_up.hpp"
#include "core/validate.hpp"
#include "webgpu/passes/geometry.hpp"

namespace attn::webgpu {
namespace {

static_assert(core::kMaxDim == 512, "the largest tiles hold 512 dims");

std::uint32_t divided_up(std::int64_t n, std::uint32_t by) {
  return static_cast<std::uint32_t>(core::divide_up(n, by));
}

// decode_subgroups.wgsl adds over lanes in 5 steps.
constexpr std::uint32_t kMostSubgroupLanes = 32;

// Words of dropout bits: 16 per block of 16 x 16 that a tile touches. A tile may begin inside of a
// block; tile_kv is a multiple of 16.
std::uint64_t keep_words(const Problem& problem, std::uint32_t tile_q, std::uint32_t tile_kv) {
  if (!problem.dropout) return 1;
  return std::uint64_t{(tile_q + 14) / 16 + 1} * (tile_kv / 16 + 1) * 16;
}

// Threads per key, 8 dimensions each. Rounded to few values, because each needs a pipeline.
std::uint32_t lanes_of(std::int64_t dim) {
  return std::max(std::bit_ceil(divided_up(dim, 8)), 4u);
}

// Forward, fastest first; they need 48 KiB, 32 KiB and 16 KiB. Measured on an H200 (2026-11; f16,
// all pairs, length 4096; GFLOP/s):
//   dim 64: {8, 16, 1, 32, 32, keep_q} 23158, {8, 16, 1, 32, 32} 22039, {16, 8, 1, 32, 32} 21709,
//     {8, 16, 1, 32, 16, keep_q} 21863, {8, 16, 1, 16, 16, keep_q} 20501, {8, 8, 1, 32, 32} 19100,
//     {8, 8, 2, 32, 32, keep_q} 13018;
//   dim 128: {8, 16, 1, 32, 32} 26207, {8, 16, 1, 32, 16} 26027, {8, 8, 1, 32, 16} 21662,
//     {16, 8, 1, 32, 16} 20653, {8, 8, 1, 32, 32} 12203.
// With more than 64 accumulators per thread, or fewer than 128 threads, loads are hidden less well.
constexpr std::array<Tiling, 3> kForward64{
    {{8, 16, 1, 32, 32, true}, {8, 8, 1, 32, 32}, {4, 8, 1, 16, 16}}};
constexpr std::array<Tiling, 3> kForward128{
    {{8, 16, 1, 32, 32}, {4, 16, 1, 32, 16}, {2, 16, 1, 16, 8}}};
constexpr std::array<Tiling, 3> kForward256{
    {{8, 16, 1, 32, 8}, {4, 16, 1, 32, 8}, {2, 16, 1, 16, 4}}};
// Values above dim 256: 32 threads share a query's accumulators, so that each keeps as many as at
// dim 256. Q and K are read in slices, so dim_qk does not matter. Not measured on a GPU.
constexpr std::array<Tiling, 3> kForward512{
    {{4, 32, 1, 32, 8}, {2, 32, 1, 16, 8}, {1, 32, 1, 8, 4}}};

// Backward, per kernel and dimension, fastest first; the last fits 16 KiB. Accumulators in
// registers: 32 floats per block for each of dk and dv, 4 * r per block for dq. Measured on an
// H200, causal, otherwise as above: the complete backward, with one tiling changed:
//   kv, dim 64: {8, 8, 16, 32} 15438, {8, 8, 32, 32} 15020, {4, 8, 16, 32} 14511,
//     {8, 8, 16, 64} 13935;
//   q, dim 64: {4, 16, 16, 32} 15564, {8, 8, 16, 32} 15252, {8, 16, 16, 32} 14220;
//   kv, dim 128 (with the tiling of q below): {8, 8, 16, 32, 8} 15919, {4, 8, 16, 32, 8} 14237,
//     {8, 8, 16, 64, 8} 13791, {8, 8, 16, 32, 16} 13314; with q's {4, 8, 16, 32} before:
//     {8, 8, 16, 32, 8} 15287, {8, 16, 16, 32, 8} 15079, {4, 16, 8, 32, 8} 14975;
//   bias gradient, dim 64 (with a bias, all pairs): {4, 16, 16, 32} 9892, {8, 8, 16, 32} 9493,
//     {8, 8, 8, 32} 8520;
//   q, dim 128 (with the tiling of kv above): {4, 16, 16, 32, 8} 15919, {4, 16, 16, 64, 8} 14836,
//     {4, 16, 16, 32, 16} 13452, {8, 8, 16, 32, 16} 12858; with kv's {8, 16, 16, 32} before:
//     {8, 8, 16, 32, 8} 15779, {4, 16, 16, 32, 8} 15758, {4, 8, 16, 32, 8} 15078.
constexpr std::array<BackwardTiling, 2> kKv64{{{8, 8, 16, 32, 16}, {8, 8, 8, 32, 16}}};
constexpr std::array<BackwardTiling, 3> kKv128{
    {{8, 8, 16, 32, 8}, {4, 16, 8, 32, 8}, {2, 16, 8, 32, 8}}};
constexpr std::array<BackwardTiling, 3> kKv256{
    {{4, 16, 8, 32, 4}, {2, 16, 8, 32, 4}, {2, 16, 8, 16, 4}}};
// Above dim 256, twice as many threads share the accumulators. Not measured on a GPU.
constexpr std::array<BackwardTiling, 2> kKv512{{{2, 32, 8, 32, 4}, {1, 32, 8, 16, 4}}};
constexpr std::array<BackwardTiling, 2> kQ64{{{4, 16, 16, 32, 16}, {8, 8, 8, 32, 16}}};
constexpr std::array<BackwardTiling, 2> kQ128{{{4, 16, 16, 32, 8}, {4, 8, 16, 32, 8}}};
constexpr std::array<BackwardTiling, 3> kQ256{
    {{4, 8, 16, 32, 4}, {2, 8, 16, 32, 4}, {2, 8, 16, 16, 4}}};
constexpr std::array<BackwardTiling, 2> kQ512{{{2, 16, 16, 32, 4}, {2, 8, 16, 32, 4}}};
constexpr std::array<BackwardTiling, 2> kBias{{{4, 16, 16, 32, 16}, {8, 8, 8, 32, 16}}};

std::span<const BackwardTiling> choices_of(BackwardKernel kernel, const Problem& problem) {
  const std::int64_t dim = std::max(problem.dim_qk, problem.dim_vo);
  switch (kernel) {
    case BackwardKernel::kv:
      if (dim <= 64) return kKv64;
      if (dim <= 128) return kKv128;
      return dim <= 256 ? std::span<const BackwardTiling>(kKv256) : kKv512;
    case BackwardKernel::q:  // accumulates dq alone; dO and V are read in slices
      if (problem.dim_qk <= 64) return kQ64;
      if (problem.dim_qk <= 128) return kQ128;
      return problem.dim_qk <= 256 ? std::span<const BackwardTiling>(kQ256) : kQ512;
    case BackwardKernel::bias: break;
  }
  return kBias;
}

}  // namespace

std::uint64_t forward_bytes(const Tiling& t, const Problem& problem) {
  const std::uint64_t slices = t.keep_q ? divided_up(problem.dim_qk, t.slice) : 1;
  const std::uint64_t q = slices * t.slice * t.rows * 2;
  const std::uint64_t k = q + std::uint64_t{t.slice} * t.columns * t.keys;
  const std::uint64_t v = (t.keep_q ? q : 0) + std::uint64_t{t.depth} * t.columns *
                                                   divided_up(problem.dim_vo, 4 * t.columns);
  const std::uint64_t pairs = std::uint64_t{t.tile_kv()} * t.rows * 2;
  const std::uint64_t part = std::uint64_t{t.columns} * t.rows * 2;
  const std::uint64_t keep = keep_words(problem, t.tile_q(), t.tile_kv());
  return 16 * (std::max(k, v) + pairs + part) + 8 * t.tile_q() + 4 * (keep + 2);
}

Tiling forward_tiling(const Problem& problem, const DeviceFacts& facts) {
  const std::int64_t dim = std::max(problem.dim_qk, problem.dim_vo);
  const auto& choices = problem.dim_vo > 256 ? kForward512
                        : dim > 128          ? kForward256
                        : dim > 64           ? kForward128
                                             : kForward64;
  for (const Tiling& t : choices) {
    if (forward_bytes(t, problem) <= facts.workgroup_bytes) return t;
  }
  return choices.back();
}

void add_tiling_constants(const Tiling& t, const Problem& problem, KernelSpec& spec) {
  spec.add_constant("ROWS", t.rows);
  spec.add_constant("COLUMNS", t.columns);
  spec.add_constant("KEYS", t.keys);
  spec.add_constant("SLICE", t.slice);
  spec.add_constant("Q_SLICES", t.keep_q ? divided_up(problem.dim_qk, t.slice) : 0);
  spec.add_constant("DEPTH", t.depth);
  spec.add_constant("BLOCKS_VO", divided_up(problem.dim_vo, 4 * t.columns));
}

std::uint64_t backward_bytes(BackwardKernel kernel, const BackwardTiling& t,
                             const Problem& problem) {
  const std::uint64_t stride = t.slice / 4 + 1;
  const std::uint64_t columns = t.tile_q() * stride + std::uint64_t{t.slice} * t.columns;
  std::uint64_t pairs = std::uint64_t{t.tile_q()} * (t.columns + 1);
  if (kernel == BackwardKernel::q) {
    pairs += std::uint64_t{t.depth} * divided_up(problem.dim_qk, 4 * t.columns) * t.columns;
  } else if (kernel == BackwardKernel::kv) {
    const std::int64_t dim = std::max(problem.dim_qk, problem.dim_vo);
    pairs += std::uint64_t{t.depth} * divided_up(dim, 8 * t.rows) * 2 * t.rows;
  }
  const std::uint64_t keep = keep_words(problem, t.tile_q(), t.tile_kv());
  return 16 * (std::max(columns, pairs) + t.tile_q()) + 4 * keep;
}

BackwardTiling backward_tiling(BackwardKernel kernel, const Problem& problem,
                               const DeviceFacts& facts) {
  const auto choices = choices_of(kernel, problem);
  for (const BackwardTiling& t : choices) {
    if (backward_bytes(kernel, t, problem) <= facts.workgroup_bytes) return t;
  }
  return choices.back();
}

void add_tiling_constants(BackwardKernel kernel, const BackwardTiling& t, const Problem& problem,
                          KernelSpec& spec) {
  spec.add_constant("R", t.r);
  spec.add_constant("ROWS", t.rows);
  spec.add_constant("COLUMNS", t.columns);
  spec.add_constant("SLICE", t.slice);
  if (kernel == BackwardKernel::bias) return;
  const std::uint32_t block = kernel == BackwardKernel::q ? 4 * t.columns : 8 * t.rows;
  spec.add_constant("BLOCKS_QK", divided_up(problem.dim_qk, block));
  if (kernel == BackwardKernel::kv) {
    spec.add_constant("BLOCKS_VO", divided_up(problem.dim_vo, block));
  }
  spec.add_constant("DEPTH", t.depth);
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

// One tile holds all rows of a key head, up to 8, so that each key is loaded once.
DecodeTiling decode_tiling(const Problem& problem, const DeviceFacts& facts) {
  DecodeTiling t;
  t.lanes = lanes_of(std::max(problem.dim_qk, problem.dim_vo));
  const std::int64_t rows = problem.len_q * (problem.heads_q / problem.heads_kv);
  if (t.lanes <= 8) t.threads = 64;  // 2606 GB/s to 2488 on an H200 (2026-11; f16, 64 x 4096 keys)
  if (facts.type == AdapterType::cpu) {  // CPU drivers compile other values for seconds
    t.threads = std::max(t.lanes, 32u);
    t.unroll = 1;
  }
  t.rows = rows > 4 ? 8 : rows > 2 ? 4 : rows > 1 ? 2 : 1;
  while (t.unroll > 1 && decode_bytes(t, problem.dropout) > facts.workgroup_bytes) t.unroll /= 2;
  while (t.rows > 1 && decode_bytes(t, problem.dropout) > facts.workgroup_bytes) t.rows /= 2;
  t.subgroups = facts.subgroup_linear && facts.subgroup_size >= t.lanes && t.lanes >= t.rows &&
                t.lanes <= kMostSubgroupLanes;
  return t;
}

}  // namespace attn::webgpu
