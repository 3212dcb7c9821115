// Measured choice of tiles; see heuristics.hpp.
#include "cuda/families/sm80/heuristics.hpp"

#include <algorithm>
#include <array>
#include <span>

#include "core/signature.hpp"
#include "cuda/families/sm80/rules.hpp"
#include "cuda/families/sm80/tiles_text.hpp"
#include "cuda/families/tuned.hpp"
#include "cuda/kernels/sm80/backward_shared.cuh"
#include "cuda/kernels/sm80/bias_gradient_shared.cuh"
#include "cuda/kernels/sm80/forward_shared.cuh"

namespace attn::cuda::sm80 {
namespace {

constexpr int kNarrowDim = 32;
constexpr int kMaxRegisters = 255;  // per thread
// Estimate for addresses, key ranges, row statistics and the operand fragments of one step.
constexpr int kOtherRegisters = 40;

// Whether the threads of a block load a tile in a whole number of steps. 8 threads load a row, or 4
// if a row is not a multiple of 128 bytes (kernels/sm80/tile.cuh).
bool loads_evenly(int row_bytes, int rows, int threads) {
  return rows % (threads / (row_bytes % 128 == 0 ? 8 : 4)) == 0;
}

// The keys and queries of the scores that a warp computes.
int score_keys_of(const Tiles& tiles) {
  return device::BackwardScoreKeys(tiles.tile_kv, tiles.warps, tiles.p_ds_in_smem);
}
int score_queries_of(const Tiles& tiles) {
  return device::BackwardScoreQueries(tiles.tile_q, tiles.tile_kv, tiles.warps, tiles.p_ds_in_smem);
}

// Why split_dk_dv and split_s_dp are not possible; "" if they are.
std::string split_misfit(const Shape& shape, const Tiles& tiles) {
  if (shape.dim_qk != shape.dim_vo) return "dK and dV by different warps are of the same dims";
  const bool small = shape.dim_qk > kMaxValueDim || shape.element_bytes == 4;
  const int keys = small ? std::min(tiles.tile_kv, 64) : 64;
  const int parts = tiles.tile_kv % keys == 0 ? tiles.warps / (tiles.tile_kv / keys) / 2 : 0;
  if (parts == 0 || shape.dim_qk % (16 * parts) != 0) {
    return "half of the warps share out 64 keys and whole 16 dims";
  }
  if (tiles.split_s_dp && (score_queries_of(tiles) != 16 || tiles.chunk != 16)) {
    return "S and dP by different warps are of 16 queries each";
  }
  return {};
}

// Why sm80/backward.cu can't be compiled for the tiles: the same conditions as its static_asserts.
std::string backward_misfit(const Shape& shape, const Tiles& tiles) {
  const int threads = 32 * tiles.warps;
  const bool wide = shape.dim_qk > kMaxValueDim;
  const bool one_stage =
      tiles.stages == 1 && (!tiles.p_ds_in_smem || wide || shape.element_bytes == 4);
  if (tiles.warps < 2 || (tiles.stages != 2 && !one_stage)) return "at least 2 warps and 2 stages";
  if (shape.element_bytes == 4 &&
      (tiles.kv_in_registers || tiles.split_s_dp || tiles.p_ds_in_smem != tiles.split_dk_dv)) {
    return "f32 keeps P in registers, or in shared memory for dK and dV by different warps";
  }
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
  const int queries = score_queries_of(tiles);
  if (queries % tiles.chunk != 0 || tiles.tile_q % queries != 0 ||
      (!wide && queries * parts != tiles.tile_q)) {
    return "a warp has whole chunks of queries";
  }
  if (tiles.p_ds_in_smem && tiles.tile_kv < 64 && !tiles.split_dk_dv) {
    return "dK and dV of less than 64 keys are of different warps";
  }
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
  const int results = tiles.split_dk_dv ? 2 : 1;  // dK and dV in shared memory at once
  if (tiles.tile_kv * results * std::max(shape.dim_qk, shape.dim_vo) * 4 >
      shared_bytes_of(shape, tiles)) {
    return "results of a tile are no more than all tiles";
  }
  return {};
}

std::string forward_misfit(const Shape& shape, const Tiles& tiles) {
  const int rows = tiles.warps > 0 ? tiles.tile_q / tiles.warps : 0;
  if (rows * tiles.warps != tiles.tile_q || (rows != 16 && rows != 32)) {
    return "a warp has 16 or 32 queries";
  }
  if (tiles.stages < 1) return "the ring has at least 1 stage";
  if (tiles.tile_kv <= 0 || tiles.tile_kv % 32 != 0) return "tile_kv is a multiple of 32";
  if (shape.element_bytes == 4 && tiles.q_in_registers) return "f32 reads Q from shared memory";
  return {};
}

bool holds(When when, const Shape& shape) {
  const bool bias_or_mask = shape.bias_bytes > 0 || shape.mask;
  const bool bias_xor_mask =
      (shape.bias_bytes > 0) != shape.mask && !shape.alibi && !shape.softcap && !shape.dropout;
  switch (when) {
    case When::always: return true;
    case When::no_bias_or_mask: return !bias_or_mask;
    case When::bias_or_mask: return bias_or_mask && !shape.alibi;
    case When::bias_xor_mask: return bias_xor_mask;
    case When::spare_registers: return bias_xor_mask || (!bias_or_mask && !shape.softcap);
    case When::dropout_or_softcap: return shape.dropout || shape.softcap;
    case When::ieee: return shape.products == 0;
    case When::tf32: return shape.products == 1 && shape.element_bytes == 4;
  }
  return false;
}

// Estimated registers per thread: accumulators of S and O, and Q if it stays in registers. 0 for
// the backward, which has no estimate.
int registers_of(const Shape& shape, const Tiles& tiles) {
  if (shape.pass == Pass::backward) return 0;
  const int rows = tiles.tile_q / tiles.warps;
  // f32 on tensor cores: P is split into two parts, and 32 columns of P V are summed in separate
  // accumulators.
  const int parts =
      shape.element_bytes == 4 && shape.products > 0 ? rows * (tiles.tile_kv + 32) / 32 : 0;
  const int q = tiles.q_in_registers ? rows * shape.dim_qk / 64 : 0;
  return rows * (tiles.tile_kv + shape.dim_vo) / 32 + q + parts + kOtherRegisters;
}

}  // namespace

int rounded_dim(std::int64_t dim) {
  for (const int rounded : {64, 96, 128, 192}) {
    if (dim <= rounded) return rounded;
  }
  return dim <= 256 ? 256 : 512;
}

bool is_wide(const Problem& problem) {
  return std::max(problem.dim_qk, problem.dim_vo) > kMaxValueDim;
}

bool is_narrow(const Problem& problem) {
  if (!problem.bias.given || problem.softcap || problem.alibi || problem.dropout) return false;
  if (core::is_f8(problem.dtype) || problem.kv_type() != problem.dtype) return false;
  return std::max(problem.dim_qk, problem.dim_vo) <= kNarrowDim && problem.dim_qk % 8 == 0 &&
         problem.dim_vo % 8 == 0;
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
  if (problem.dtype == DType::f32 && problem.precision != Precision::tf32) {
    shape.products = problem.precision == Precision::ieee ? 0 : 3;
  }
  shape.dim_qk = rounded_dim(problem.dim_qk);
  shape.dim_vo = rounded_dim(problem.dim_vo);
  if (is_wide(problem)) {
    shape.dim_qk = 512;
    shape.dim_vo = pass == Pass::backward ? 512 : kMaxValueDim;
    shape.element_bytes = problem.dtype == DType::f32 ? 4 : 2;
    return shape;
  }
  if (is_narrow(problem)) {
    shape.dim_qk = shape.dim_vo = kNarrowDim;
    shape.element_bytes = static_cast<int>(size_of(problem.dtype));
    return shape;
  }
  if (problem.dtype == DType::f32) {
    // Both dims are the same, to limit the number of kernels: each dim has one per precision.
    const int largest = std::max(shape.dim_qk, shape.dim_vo);
    shape.dim_qk = shape.dim_vo = largest == 96 ? 128 : largest;
    shape.element_bytes = 4;
    return shape;
  }
  // Plain problems have a kernel for each pair of dims. With options or dims that are no multiple
  // of 8, both dims are rounded up to the same value, to avoid hundreds of kernels.
  const bool odd = problem.dim_qk % 8 != 0 || problem.dim_vo % 8 != 0;
  const bool options =
      shape.bias_bytes > 0 || shape.mask || shape.softcap || shape.alibi || shape.dropout;
  const int larger = std::max(shape.dim_qk, shape.dim_vo);
  // The backward with both dims 256 needs more shared memory than some devices have.
  if ((options || odd) && !(pass == Pass::backward && larger > 192)) {
    shape.dim_qk = shape.dim_vo = larger == 96 ? 128 : larger;
  }
  // 96 is only for forwards with both dims 96, as some models have, to limit the number of kernels.
  if (shape.dim_qk != shape.dim_vo || pass == Pass::backward) {
    shape.dim_qk = shape.dim_qk == 96 ? 128 : shape.dim_qk;
    shape.dim_vo = shape.dim_vo == 96 ? 128 : shape.dim_vo;
  }
  return shape;
}

int shared_bytes_of(const Shape& shape, const BiasGradientTiles& tiles) {
  return device::BiasGradientSharedOf(tiles.tile_q, tiles.tile_kv, tiles.stages, shape.dim_qk,
                                      shape.dim_vo, shape.bias_bytes, shape.mask,
                                      shape.element_bytes)
      .bytes;
}

BiasGradientTiles choose_bias_gradient_tiles(const Shape& shape, const DeviceFacts& facts) {
  const int dim = std::max(shape.dim_qk, shape.dim_vo);
  if (dim > kMaxValueDim && shared_bytes_of(shape, kWideBiasGradient) <= facts.shared_per_block) {
    return kWideBiasGradient;
  }
  for (const BiasGradientTiles& tiles : kBiasGradient) {
    // With a mask, 32 rows per warp spill in the loop for narrow heads, and up to dim 64 with one
    // stage.
    const bool spills = dim <= kNarrowDim || (dim <= 64 && tiles.stages == 1);
    if (shape.mask && spills && tiles.tile_q / tiles.warps == 32) continue;
    // The sums reuse the shared memory of the tiles of q, dout, k and v.
    const int tile_bytes = tiles.stages * (tiles.tile_q + tiles.tile_kv) *
                           (shape.dim_qk + shape.dim_vo) * shape.element_bytes;
    if (tiles.tile_q * tiles.tile_kv * 4 > tile_bytes) continue;
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
                                    shape.mask, shape.element_bytes)
        .bytes;
  }
  return device::ForwardSharedOf(tiles.tile_q, tiles.tile_kv, tiles.stages, shape.dim_qk,
                                 shape.dim_vo, shape.bias_bytes, shape.mask, shape.element_bytes)
      .bytes;
}

std::string misfit(const Shape& shape, const Tiles& tiles, const DeviceFacts& facts) {
  const int threads = 32 * tiles.warps;
  const bool backward = shape.pass == Pass::backward;
  if (std::string why = backward ? backward_misfit(shape, tiles) : forward_misfit(shape, tiles);
      !why.empty()) {
    return why;
  }
  for (const auto& [dim, tile] :
       {std::pair{shape.dim_qk, tiles.tile_q}, std::pair{shape.dim_qk, tiles.tile_kv},
        std::pair{backward ? shape.dim_vo : shape.dim_qk, tiles.tile_q},
        std::pair{shape.dim_vo, tiles.tile_kv}}) {
    if (!loads_evenly(dim * shape.element_bytes, tile, threads)) {
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
           " registers of a thread, which has " + std::to_string(registers);
  }
  return {};
}

namespace {
std::span<const Rule> rules_of(bool backward, bool f32) {
  if (f32) return backward ? std::span<const Rule>(kBackwardF32) : kForwardF32;
  return backward ? std::span<const Rule>(kBackward) : kForward;
}
}  // namespace

std::optional<Tiles> choose_tiles(const Shape& shape, const DeviceFacts& facts) {
  if (facts.tuned != nullptr && facts.tuned->size() > 0) {
    const auto text = facts.tuned->find(to_string(shape));
    const auto tuned = text ? parse_tiles(*text) : std::nullopt;
    if (tuned && misfit(shape, *tuned, facts).empty()) return tuned;
  }
  const std::span<const Rule> rules =
      rules_of(shape.pass == Pass::backward, shape.element_bytes == 4);
  for (const Rule& rule : rules) {
    if (std::max(shape.dim_qk, shape.dim_vo) > rule.largest_dim) continue;
    if (!holds(rule.when, shape)) continue;
    if (misfit(shape, rule.tiles, facts).empty()) return rule.tiles;
  }
  return std::nullopt;
}

}  // namespace attn::cuda::sm80
