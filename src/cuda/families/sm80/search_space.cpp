// Tiles worth measuring; see search_space.hpp.
#include "cuda/families/sm80/search_space.hpp"

#include <array>
#include <span>

namespace attn::cuda::sm80 {
namespace {

constexpr device::BackwardSplit kSplits[] = {
    {}, {true, false, false}, {true, true, false}, {true, true, true}};

// Stages worth measuring: tiles of f32 and of wide heads leave little shared memory.
std::span<const int> stages_of(const Shape& shape) {
  static constexpr std::array kStages{1, 2};
  if (shape.dim_qk > kMaxValueDim) return std::span(kStages).first(1);
  return shape.element_bytes == 4 ? std::span(kStages) : std::span(kStages).last(1);
}

std::vector<Tiles> backward_candidates(const Shape& shape, const DeviceFacts& facts) {
  std::vector<Tiles> list;
  const auto add = [&](Tiles tiles) {
    for (const int stages : stages_of(shape)) {
      tiles.stages = stages;
      for (const device::BackwardSplit& split : kSplits) {
        tiles.p_ds_in_smem = split.p_ds_in_smem;
        tiles.split_dk_dv = split.split_dk_dv;
        tiles.split_s_dp = split.split_s_dp;
        for (const bool kv_in_registers : {false, true}) {
          tiles.kv_in_registers = kv_in_registers;
          if (split.p_ds_in_smem && kv_in_registers) continue;  // the kernel ignores it
          if (misfit(shape, tiles, facts).empty()) list.push_back(tiles);
        }
      }
    }
  };
  const bool small = shape.dim_qk > (shape.element_bytes == 4 ? 128 : kMaxValueDim);
  const std::array kv_tiles = small ? std::array{16, 32} : std::array{64, 128};
  for (const int warps : {4, 8}) {
    for (const int tile_q : {32, 64, 128}) {
      for (const int tile_kv : kv_tiles) {
        for (const int blocks : {1, 2}) {
          for (const int chunk : {16, 32}) {
            add({.tile_q = tile_q,
                 .tile_kv = tile_kv,
                 .warps = warps,
                 .blocks = blocks,
                 .chunk = chunk});
          }
        }
      }
    }
  }
  return list;
}

}  // namespace

std::vector<Tiles> candidate_tiles(const Shape& shape, const DeviceFacts& facts) {
  if (shape.pass == Pass::backward) return backward_candidates(shape, facts);
  std::vector<Tiles> list;
  for (const int warps : {4, 8}) {
    for (const int rows : {16, 32}) {
      for (const int tile_kv : {32, 64, 96, 128}) {
        for (const int stages : {1, 2, 3}) {
          for (const int blocks : {1, 2, 3, 4}) {
            for (const bool q_in_registers : {false, true}) {
              const Tiles tiles{warps * rows, tile_kv, warps, stages, blocks, q_in_registers};
              if (misfit(shape, tiles, facts).empty()) list.push_back(tiles);
            }
          }
        }
      }
    }
  }
  return list;
}

}  // namespace attn::cuda::sm80
