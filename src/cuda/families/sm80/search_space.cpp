// Tiles worth measuring; see search_space.hpp.
#include "cuda/families/sm80/search_space.hpp"

namespace attn::cuda::sm80 {
namespace {

constexpr device::BackwardSplit kSplits[] = {
    {}, {true, false, false}, {true, true, false}, {true, true, true}};

std::vector<Tiles> backward_candidates(const Shape& shape, const DeviceFacts& facts) {
  std::vector<Tiles> list;
  const bool wide = shape.dim_qk > kMaxValueDim;
  for (const int warps : {4, 8}) {
    for (const int tile_q : {32, 64, 128}) {
      for (const int tile_kv : wide ? std::array{16, 32} : std::array{64, 128}) {
        for (const int blocks : {1, 2}) {
          for (const int chunk : {16, 32}) {
            for (const device::BackwardSplit& split : kSplits) {
              for (const bool kv_in_registers : {false, true}) {
                if (split.p_ds_in_smem && kv_in_registers) continue;  // the kernel ignores it
                const Tiles tiles{.tile_q = tile_q,
                                  .tile_kv = tile_kv,
                                  .warps = warps,
                                  .stages = wide ? 1 : 2,
                                  .blocks = blocks,
                                  .chunk = chunk,
                                  .p_ds_in_smem = split.p_ds_in_smem,
                                  .split_dk_dv = split.split_dk_dv,
                                  .split_s_dp = split.split_s_dp,
                                  .kv_in_registers = kv_in_registers};
                if (misfit(shape, tiles, facts).empty()) list.push_back(tiles);
              }
            }
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
