// Tiles of kernels; see table.hpp.
#include "cuda/host/table.hpp"

#include <algorithm>
#include <array>
#include <span>

#include "cuda/host/tuned.hpp"
#include "cuda/kernels/sm80/backward_shared.cuh"
#include "cuda/kernels/sm80/bias_gradient_shared.cuh"
#include "cuda/kernels/sm80/forward_shared.cuh"

namespace attn::cuda {
namespace {

constexpr std::int64_t kReservedShared = 1024;  // of each block, by the driver (8.0 and later)
constexpr int kMaxRegisters = 255;              // of a thread
// Addresses, ranges, statistics and the fragments of one step, beside the accumulators.
constexpr int kOtherRegisters = 40;

enum class When {
  always,
  no_pairs,  // no bias or mask
  pairs,     // bias or mask, without ALiBi
  one_pair,  // one of both and nothing else that acts on scores or P
  no_cap,    // no bias, mask or softcap
  costly,    // dropout or softcap
};

// Rules are tried in order. A rule holds up to `largest_dim`, the larger of dim_qk and dim_vo.
struct Rule {
  int largest_dim;
  Tiles tiles;
  When when = When::always;
};

// 32 queries per warp halve the reads of shared memory per product, and two blocks per SM hide each
// other's barriers: both as long as registers and shared memory last. 16 queries per warp leave
// registers for softcap and ALiBi, allow more blocks, and compute less that a causal mask hides.
// Measurements: docs/kernels/sm80.md, "Forward". The later rules of each group are for less shared
// memory.
constexpr std::array kForward{
    Rule{.largest_dim = 64,
         .tiles = {.tile_q = 128,
                   .tile_kv = 64,
                   .warps = 4,
                   .stages = 2,
                   .blocks = 2,
                   .q_in_registers = true},
         .when = When::no_cap},
    Rule{.largest_dim = 64,
         .tiles = {.tile_q = 128,
                   .tile_kv = 64,
                   .warps = 4,
                   .stages = 2,
                   .blocks = 2,
                   .q_in_registers = true},
         .when = When::one_pair},
    Rule{.largest_dim = 64,
         .tiles = {.tile_q = 128, .tile_kv = 64, .warps = 4, .stages = 2, .blocks = 2},
         .when = When::pairs},
    Rule{.largest_dim = 64,
         .tiles = {.tile_q = 64,
                   .tile_kv = 64,
                   .warps = 4,
                   .stages = 2,
                   .blocks = 3,
                   .q_in_registers = true}},
    Rule{.largest_dim = 64,
         .tiles = {.tile_q = 128,
                   .tile_kv = 32,
                   .warps = 4,
                   .stages = 2,
                   .blocks = 2,
                   .q_in_registers = true}},
    Rule{.largest_dim = 128,
         .tiles = {.tile_q = 128, .tile_kv = 64, .warps = 4, .stages = 1, .blocks = 2},
         .when = When::no_pairs},
    Rule{.largest_dim = 128,
         .tiles = {.tile_q = 128, .tile_kv = 64, .warps = 4, .stages = 2, .blocks = 2},
         .when = When::one_pair},
    Rule{.largest_dim = 128,
         .tiles = {.tile_q = 128, .tile_kv = 32, .warps = 4, .stages = 2, .blocks = 2},
         .when = When::pairs},
    Rule{.largest_dim = 128,
         .tiles = {.tile_q = 64,
                   .tile_kv = 64,
                   .warps = 4,
                   .stages = 2,
                   .blocks = 2,
                   .q_in_registers = true}},
    Rule{.largest_dim = 128,
         .tiles = {.tile_q = 128, .tile_kv = 32, .warps = 4, .stages = 2, .blocks = 2}},
    Rule{.largest_dim = 128,
         .tiles = {.tile_q = 128, .tile_kv = 64, .warps = 8, .stages = 2, .blocks = 1}},
    Rule{.largest_dim = 128,
         .tiles = {.tile_q = 128, .tile_kv = 32, .warps = 8, .stages = 2, .blocks = 1}},
    Rule{.largest_dim = 128,
         .tiles = {.tile_q = 128, .tile_kv = 32, .warps = 4, .stages = 2, .blocks = 1}},
    Rule{.largest_dim = 256,
         .tiles = {.tile_q = 64, .tile_kv = 64, .warps = 4, .stages = 1, .blocks = 2},
         .when = When::no_pairs},
    Rule{.largest_dim = 256,
         .tiles = {.tile_q = 128, .tile_kv = 64, .warps = 8, .stages = 2, .blocks = 1},
         .when = When::no_pairs},
    Rule{.largest_dim = 256,
         .tiles = {.tile_q = 128, .tile_kv = 32, .warps = 8, .stages = 2, .blocks = 1}},
    Rule{.largest_dim = 256,
         .tiles = {.tile_q = 64, .tile_kv = 64, .warps = 4, .stages = 2, .blocks = 1}},
    Rule{.largest_dim = 256,
         .tiles = {.tile_q = 64, .tile_kv = 32, .warps = 4, .stages = 2, .blocks = 1}},
    Rule{.largest_dim = 256,
         .tiles = {.tile_q = 32, .tile_kv = 32, .warps = 2, .stages = 2, .blocks = 1}},
};

// The rules below the first of each group are for less shared memory; the last one spills.
// Up to dim 64 dK and dV of 32 keys fit a warp's registers, so P and dS^T stay there, and a chunk
// of 16 queries leaves registers for dropout and softcap. Above it they do not. Measurements:
// docs/kernels/sm80.md, "Backward".
constexpr std::array kBackward{
    Rule{.largest_dim = 64,
         .tiles = {.tile_q = 64, .tile_kv = 128, .warps = 4, .stages = 2, .blocks = 2, .chunk = 16},
         .when = When::costly},
    Rule{
        .largest_dim = 64,
        .tiles = {.tile_q = 64, .tile_kv = 128, .warps = 4, .stages = 2, .blocks = 2, .chunk = 32}},
    Rule{.largest_dim = 128,
         .tiles = {.tile_q = 64,
                   .tile_kv = 128,
                   .warps = 8,
                   .stages = 2,
                   .blocks = 1,
                   .chunk = 32,
                   .p_ds_in_smem = true,
                   .split_dk_dv = true}},
    Rule{.largest_dim = 128,
         .tiles = {.tile_q = 64,
                   .tile_kv = 128,
                   .warps = 8,
                   .stages = 2,
                   .blocks = 1,
                   .chunk = 32,
                   .p_ds_in_smem = true}},
    Rule{.largest_dim = 128,
         .tiles = {.tile_q = 64, .tile_kv = 64, .warps = 4, .stages = 2, .blocks = 1, .chunk = 32},
         .when = When::no_pairs},
    Rule{.largest_dim = 128,
         .tiles = {.tile_q = 64, .tile_kv = 64, .warps = 4, .stages = 2, .blocks = 1, .chunk = 16}},
    Rule{.largest_dim = 128,
         .tiles = {.tile_q = 32, .tile_kv = 64, .warps = 4, .stages = 2, .blocks = 1, .chunk = 32}},
    Rule{.largest_dim = 256,
         .tiles = {.tile_q = 64,
                   .tile_kv = 64,
                   .warps = 8,
                   .stages = 2,
                   .blocks = 1,
                   .chunk = 16,
                   .p_ds_in_smem = true,
                   .split_dk_dv = true,
                   .split_s_dp = true}},
    Rule{.largest_dim = 256,
         .tiles = {.tile_q = 64,
                   .tile_kv = 64,
                   .warps = 8,
                   .stages = 2,
                   .blocks = 1,
                   .chunk = 16,
                   .p_ds_in_smem = true,
                   .split_dk_dv = true}},
    Rule{.largest_dim = 256,
         .tiles = {.tile_q = 64,
                   .tile_kv = 64,
                   .warps = 8,
                   .stages = 2,
                   .blocks = 1,
                   .chunk = 16,
                   .p_ds_in_smem = true}},
    Rule{.largest_dim = 256,
         .tiles = {.tile_q = 32, .tile_kv = 32, .warps = 2, .stages = 2, .blocks = 1, .chunk = 16}},
};

// Two stages if shared memory has room for them at two blocks per SM, then one; smaller tiles last.
constexpr std::array kBiasGradient{
    BiasGradientTiles{.tile_q = 128, .tile_kv = 64, .warps = 4, .stages = 2, .blocks = 2},
    BiasGradientTiles{.tile_q = 128, .tile_kv = 64, .warps = 4, .stages = 1, .blocks = 2},
    BiasGradientTiles{.tile_q = 64, .tile_kv = 64, .warps = 4, .stages = 1, .blocks = 3},
    BiasGradientTiles{.tile_q = 64, .tile_kv = 64, .warps = 4, .stages = 1, .blocks = 2},
    BiasGradientTiles{.tile_q = 64, .tile_kv = 64, .warps = 4, .stages = 1, .blocks = 1},
    BiasGradientTiles{.tile_q = 32, .tile_kv = 32, .warps = 2, .stages = 1, .blocks = 1}};

// Rows of K and V are loaded by 8 threads each, by 4 where they are no multiples of 128 bytes, all
// threads at once (kernels/shared/tile.cuh).
bool loads_evenly(int dim, int rows, int threads) {
  return rows % (threads / (dim % 64 == 0 ? 8 : 4)) == 0;
}

// Keys of a warp's scores.
int score_keys_of(const Tiles& tiles) {
  return tiles.p_ds_in_smem ? 32 : tiles.tile_kv / tiles.warps;
}

// Why split_dk_dv and split_s_dp are not possible; "" if they are.
std::string split_misfit(const Shape& shape, const Tiles& tiles) {
  if (shape.dim_qk != shape.dim_vo) return "dK and dV by different warps are of the same dims";
  const int parts = tiles.tile_kv % 64 == 0 ? tiles.warps / (tiles.tile_kv / 64) / 2 : 0;
  if (parts == 0 || shape.dim_qk % (16 * parts) != 0) {
    return "half of the warps share out 64 keys and whole 16 dims";
  }
  const int queries = tiles.tile_q / (tiles.warps / (tiles.tile_kv / score_keys_of(tiles)));
  if (tiles.split_s_dp && (queries != 16 || tiles.chunk != 16)) {
    return "S and dP by different warps are of 16 queries each";
  }
  return {};
}

// What sm80/backward.cu can be compiled for; as its assertions.
std::string backward_misfit(const Shape& shape, const Tiles& tiles) {
  const int threads = 32 * tiles.warps;
  if (tiles.warps < 2 || tiles.stages != 2) return "at least 2 warps and 2 stages";
  if (tiles.chunk != 16 && tiles.chunk != 32) return "a chunk is 16 or 32 queries";
  if (tiles.tile_q <= 0 || tiles.tile_q % 32 != 0 || tiles.tile_q > threads) {
    return "tile_q is a multiple of 32 and no more than the threads";
  }
  const int keys = score_keys_of(tiles);
  if (tiles.tile_kv <= 0 || (keys != 16 && keys != 32) || tiles.tile_kv % keys != 0 ||
      tiles.warps % (tiles.tile_kv / keys) != 0) {
    return "a warp has 16 or 32 keys";
  }
  const int parts = tiles.warps / (tiles.tile_kv / keys);
  if (tiles.tile_q % (parts * tiles.chunk) != 0) return "a warp has whole chunks of queries";
  if (shape.dim_qk % (16 * parts) != 0 || shape.dim_vo % (16 * parts) != 0) {
    return "the warps share out whole 16 dims";
  }
  if ((tiles.split_dk_dv && !tiles.p_ds_in_smem) || (tiles.split_s_dp && !tiles.split_dk_dv)) {
    return "split_dk_dv needs p_ds_in_smem, split_s_dp needs split_dk_dv";
  }
  if (tiles.split_dk_dv) {
    if (std::string why = split_misfit(shape, tiles); !why.empty()) return why;
  }
  const int sum_warps = shape.dim_qk % (8 * tiles.warps) == 0 ? 2 : 4;
  if (tiles.warps % sum_warps != 0 || tiles.tile_q % (16 * sum_warps) != 0 ||
      shape.dim_qk % (16 * (tiles.warps / sum_warps)) != 0) {
    return "the warps share out dq by 16 queries and dims";
  }
  const int results = tiles.split_dk_dv ? 2 : 1;  // in shared memory at once
  if (tiles.tile_kv * results * std::max(shape.dim_qk, shape.dim_vo) * 4 >
      shared_bytes_of(shape, tiles)) {
    return "results of a tile are no more than all tiles";
  }
  return {};
}

std::string forward_misfit(const Tiles& tiles) {
  const int rows = tiles.warps > 0 ? tiles.tile_q / tiles.warps : 0;
  if (rows * tiles.warps != tiles.tile_q || (rows != 16 && rows != 32)) {
    return "a warp has 16 or 32 queries";
  }
  if (tiles.stages < 1) return "the ring has at least 1 stage";
  if (tiles.tile_kv <= 0 || tiles.tile_kv % 32 != 0) return "tile_kv is a multiple of 32";
  return {};
}

bool holds(When when, const Shape& shape) {
  const bool pairs = shape.bias_bytes > 0 || shape.mask;
  switch (when) {
    case When::always: return true;
    case When::no_pairs: return !pairs;
    case When::pairs: return pairs && !shape.alibi;
    case When::one_pair:
      return (shape.bias_bytes > 0) != shape.mask && !shape.alibi && !shape.softcap &&
             !shape.dropout;
    case When::no_cap: return !pairs && !shape.softcap;
    case When::costly: return shape.dropout || shape.softcap;
  }
  return false;
}

// Of a thread: the accumulators of S and O, and Q where it is kept; 0 where it isn't known.
int registers_of(const Shape& shape, const Tiles& tiles) {
  if (shape.pass == Pass::backward) return 0;
  const int rows = tiles.tile_q / tiles.warps;
  const int q = tiles.q_in_registers ? rows * shape.dim_qk / 64 : 0;
  return rows * (tiles.tile_kv + shape.dim_vo) / 32 + q + kOtherRegisters;
}

}  // namespace

int rounded_dim(std::int64_t dim) {
  for (const int rounded : {64, 96, 128, 192}) {
    if (dim <= rounded) return rounded;
  }
  return 256;
}

Shape shape_of(Pass pass, const Problem& problem) {
  Shape shape;
  shape.pass = pass == Pass::decode ? Pass::forward : pass;
  shape.bias_bytes = problem.bias.given ? static_cast<int>(size_of(problem.bias_type())) : 0;
  shape.mask = problem.mask.given;
  shape.softcap = problem.softcap;
  shape.banded = problem.causal || problem.window_left || problem.window_right;
  shape.alibi = problem.alibi;
  shape.dropout = problem.dropout;
  shape.dim_qk = rounded_dim(problem.dim_qk);
  shape.dim_vo = rounded_dim(problem.dim_vo);
  // Each pair of dims is a kernel, but together with something else only each multiple of 64, for
  // both: there would be hundreds.
  const bool odd = problem.dim_qk % 8 != 0 || problem.dim_vo % 8 != 0;
  const bool options =
      shape.bias_bytes > 0 || shape.mask || shape.softcap || shape.alibi || shape.dropout;
  const int larger = std::max(shape.dim_qk, shape.dim_vo);
  // The backward of 256 and 256 asks for more shared memory than every device has.
  if ((options || odd) && !(pass == Pass::backward && larger > 192)) {
    shape.dim_qk = shape.dim_vo = larger == 96 ? 128 : larger;
  }
  // 96 is for the forward of models that have it in both: elsewhere it would be many kernels.
  if (shape.dim_qk != shape.dim_vo || pass == Pass::backward) {
    shape.dim_qk = shape.dim_qk == 96 ? 128 : shape.dim_qk;
    shape.dim_vo = shape.dim_vo == 96 ? 128 : shape.dim_vo;
  }
  return shape;
}

int shared_bytes_of(const Shape& shape, const BiasGradientTiles& tiles) {
  return device::BiasGradientSharedOf(tiles.tile_q, tiles.tile_kv, tiles.stages, shape.dim_qk,
                                      shape.dim_vo, shape.bias_bytes, shape.mask)
      .bytes;
}

BiasGradientTiles choose_bias_gradient_tiles(const Shape& shape, const DeviceFacts& facts) {
  const bool small = std::max(shape.dim_qk, shape.dim_vo) <= 64;
  for (const BiasGradientTiles& tiles : kBiasGradient) {
    // Where there is no shared memory for two stages: 32 rows a warp with a mask spill in the loop.
    if (shape.mask && small && tiles.stages == 1 && tiles.tile_q / tiles.warps == 32) continue;
    const std::int64_t shared = shared_bytes_of(shape, tiles);
    if (shared <= facts.shared_per_block &&
        tiles.blocks * (shared + kReservedShared) <= facts.shared_per_sm) {
      return tiles;
    }
  }
  return kBiasGradient.back();
}

int shared_bytes_of(const Shape& shape, const Tiles& tiles) {
  if (shape.pass == Pass::backward) {
    return device::BackwardSharedOf(tiles.tile_q, tiles.tile_kv, tiles.stages, shape.dim_qk,
                                    shape.dim_vo, tiles.split(), tiles.warps, shape.bias_bytes,
                                    shape.mask)
        .bytes;
  }
  return device::ForwardSharedOf(tiles.tile_q, tiles.tile_kv, tiles.stages, shape.dim_qk,
                                 shape.dim_vo, shape.bias_bytes, shape.mask)
      .bytes;
}

std::string misfit(const Shape& shape, const Tiles& tiles, const DeviceFacts& facts) {
  const int threads = 32 * tiles.warps;
  const bool backward = shape.pass == Pass::backward;
  if (std::string why = backward ? backward_misfit(shape, tiles) : forward_misfit(tiles);
      !why.empty()) {
    return why;
  }
  for (const auto& [dim, tile] :
       {std::pair{shape.dim_qk, tiles.tile_q}, std::pair{shape.dim_qk, tiles.tile_kv},
        std::pair{backward ? shape.dim_vo : shape.dim_qk, tiles.tile_q},
        std::pair{shape.dim_vo, tiles.tile_kv}}) {
    if (!loads_evenly(dim, tile, threads)) {
      return "a tile of " + std::to_string(tile) + " rows of " + std::to_string(dim) +
             " is no whole number of loads of " + std::to_string(threads) + " threads";
    }
  }
  const std::int64_t shared = shared_bytes_of(shape, tiles);
  if (shared > facts.shared_per_block) {
    return "needs " + std::to_string(shared) + " bytes of shared memory, a block has " +
           std::to_string(facts.shared_per_block);
  }
  if (tiles.blocks < 1 || tiles.blocks * (shared + kReservedShared) > facts.shared_per_sm) {
    return std::to_string(tiles.blocks) + " blocks of " + std::to_string(shared) +
           " bytes of shared memory are not in the " + std::to_string(facts.shared_per_sm) +
           " of an SM";
  }
  if (tiles.blocks * threads > facts.threads_per_sm) {
    return std::to_string(tiles.blocks * threads) + " threads are more than the " +
           std::to_string(facts.threads_per_sm) + " of an SM";
  }
  const int registers = std::min(kMaxRegisters, facts.registers_per_sm / (tiles.blocks * threads));
  if (registers_of(shape, tiles) > registers) {
    return "needs about " + std::to_string(registers_of(shape, tiles)) +
           " registers of a thread, of which there are " + std::to_string(registers);
  }
  return {};
}

std::optional<Tiles> choose_tiles(const Shape& shape, const DeviceFacts& facts) {
  if (facts.tuned != nullptr) {
    const auto tuned = facts.tuned->find(shape);
    if (tuned && misfit(shape, *tuned, facts).empty()) return tuned;
  }
  const std::span<const Rule> rules =
      shape.pass == Pass::backward ? std::span<const Rule>(kBackward) : kForward;
  for (const Rule& rule : rules) {
    if (std::max(shape.dim_qk, shape.dim_vo) > rule.largest_dim) continue;
    if (!holds(rule.when, shape)) continue;
    if (misfit(shape, rule.tiles, facts).empty()) return rule.tiles;
  }
  return std::nullopt;
}

}  // namespace attn::cuda
