// Tiles of kernels; see table.hpp.
#include "cuda/host/table.hpp"

#include <algorithm>
#include <array>

#include "cuda/host/tuned.hpp"
#include "cuda/kernels/portable/forward_shared.cuh"

namespace attn::cuda {
namespace {

constexpr std::int64_t kReservedShared = 1024;  // of each block, by the driver (8.0 and later)
constexpr int kMaxRegisters = 255;              // of a thread
// Addresses, ranges, statistics and the fragments of one step, beside the accumulators.
constexpr int kOtherRegisters = 40;

// Tried in turn. Up to `largest_dim`, the larger of the two.
struct Rule {
  int largest_dim;
  Tiles tiles;  // tile_q, tile_kv, warps, stages, blocks, q_in_registers
};

// 32 queries a warp halve what is read of shared memory for each product; two blocks of an SM hide
// each other's barriers. Both for as long as registers and shared memory last
// (docs/kernels/portable.md). The rules below the first of each group are for less shared memory.
constexpr std::array kForward{
    Rule{64, {128, 64, 4, 2, 2, true}},    //
    Rule{128, {128, 64, 4, 2, 2, false}},  //
    Rule{128, {128, 32, 4, 2, 2, false}},  //
    Rule{128, {128, 64, 8, 2, 1, false}},  //
    Rule{128, {128, 32, 8, 2, 1, false}},  //
    Rule{128, {128, 32, 4, 2, 1, false}},  //
    Rule{256, {128, 64, 8, 2, 1, false}},  //
    Rule{256, {128, 32, 8, 2, 1, false}},  //
    Rule{256, {64, 64, 4, 2, 1, false}},   //
    Rule{256, {64, 32, 4, 2, 1, false}},   //
    Rule{256, {32, 32, 2, 2, 1, false}},
};

// Rows of K and V are loaded by 8 threads each, by 4 where they are no multiples of 128 bytes, all
// threads at once (kernels/shared/tile.cuh).
bool loads_evenly(int dim, int rows, int threads) {
  return rows % (threads / (dim % 64 == 0 ? 8 : 4)) == 0;
}

// Of a thread: the accumulators of S and O, and Q where it is kept.
int registers_of(const Shape& shape, const Tiles& tiles) {
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
  shape.dim_qk = rounded_dim(problem.dim_qk);
  shape.dim_vo = rounded_dim(problem.dim_vo);
  shape.bias_bytes = problem.bias.given ? static_cast<int>(size_of(problem.bias_type())) : 0;
  shape.mask = problem.mask.given;
  shape.softcap = problem.softcap;
  shape.alibi = problem.alibi;
  shape.dropout = problem.dropout;
  return shape;
}

int shared_bytes_of(const Shape& shape, const Tiles& tiles) {
  return device::ForwardSharedOf(tiles.tile_q, tiles.tile_kv, tiles.stages, shape.dim_qk,
                                 shape.dim_vo, shape.bias_bytes, shape.mask)
      .bytes;
}

std::string misfit(const Shape& shape, const Tiles& tiles, const DeviceFacts& facts) {
  const int threads = 32 * tiles.warps;
  const int rows = tiles.warps > 0 ? tiles.tile_q / tiles.warps : 0;
  if (rows * tiles.warps != tiles.tile_q || (rows != 16 && rows != 32)) {
    return "a warp has 16 or 32 queries";
  }
  if (tiles.stages < 2) return "the ring has at least 2 stages";
  if (tiles.tile_kv <= 0 || tiles.tile_kv % 32 != 0) return "tile_kv is a multiple of 32";
  for (const auto& [dim, tile] :
       {std::pair{shape.dim_qk, tiles.tile_q}, std::pair{shape.dim_qk, tiles.tile_kv},
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
  for (const Rule& rule : kForward) {
    if (std::max(shape.dim_qk, shape.dim_vo) > rule.largest_dim) continue;
    if (misfit(shape, rule.tiles, facts).empty()) return rule.tiles;
  }
  return std::nullopt;
}

}  // namespace attn::cuda
