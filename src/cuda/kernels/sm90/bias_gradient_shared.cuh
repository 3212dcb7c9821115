// Tiles and shared memory of sm90/bias_gradient.cu, for the host and the kernel.
#pragma once
#include "shared/operand.cuh"

namespace attn::device::sm90 {

inline constexpr int kBiasGradientWarpgroups = 2;  // consumers, of 64 queries each
inline constexpr int kBiasGradientThreads = 128 * (1 + kBiasGradientWarpgroups);
// Queries, and keys, of a tile of dbias.
inline constexpr int kBiasGradientTile = 64 * kBiasGradientWarpgroups;
inline constexpr int kBiasGradientBarrierBytes = 256;
inline constexpr int kBiasGradientMaxBytes = 232448;  // of a block, compute capability 9.0

// Offsets in bytes. Tiles of q, k, dout and v are stored in chunks of 64 columns, [chunk][row][64],
// with 128-byte swizzle, and begin at multiples of 1024. After the last visit, the tile of dbias
// overlays them from offset 0: [tile / 64] tiles of score_tile.cuh.
struct BiasGradientShared {
  int stages_qk = 0;
  int stages_vo = 0;  // also of `rows` and `hidden`
  int q = 0;          // [stages_qk][tile][dim_qk]
  int k = 0;          // [stages_qk][tile][dim_qk]
  int dout = 0;       // [stages_vo][tile][dim_vo]
  int v = 0;          // [stages_vo][tile][dim_vo]
  int bias = 0;       // [tile / 64] tiles: score_tile.cuh
  int rows = 0;       // f32 pairs [stages_vo][tile] {lse in units of log2, delta}
  int hidden = 0;     // [stages_vo][4] words, one bit per key: bias_gradient_producer.cuh
  int barriers = 0;
  int bytes = 0;
};

constexpr BiasGradientShared BiasGradientSharedWith(int stages_qk, int stages_vo, int dim_qk,
                                                    int dim_vo, int bias_bytes) {
  const int qk_bytes = kBiasGradientTile * ((dim_qk + 63) / 64 * 64) * kOperandBytes;
  const int vo_bytes = kBiasGradientTile * ((dim_vo + 63) / 64 * 64) * kOperandBytes;
  BiasGradientShared s;
  s.stages_qk = stages_qk;
  s.stages_vo = stages_vo;
  s.k = s.q + stages_qk * qk_bytes;
  s.dout = s.k + stages_qk * qk_bytes;
  s.v = s.dout + stages_vo * vo_bytes;
  s.bias = s.v + stages_vo * vo_bytes;
  s.rows = s.bias + kBiasGradientTile * kBiasGradientTile * bias_bytes;
  s.hidden = s.rows + stages_vo * kBiasGradientTile * 8;
  s.barriers = s.hidden + stages_vo * 16;
  s.bytes = s.barriers + kBiasGradientBarrierBytes;
  return s;
}

// With two stages, the tiles of the next visit are loaded during the current one. If they exceed
// shared memory, first dO and V have one stage, then Q and K: their loads then overlap only the
// part of a visit that no longer reads them.
constexpr BiasGradientShared BiasGradientSharedOf(int dim_qk, int dim_vo, int bias_bytes) {
  BiasGradientShared s = BiasGradientSharedWith(2, 2, dim_qk, dim_vo, bias_bytes);
  if (s.bytes <= kBiasGradientMaxBytes) return s;
  s = BiasGradientSharedWith(2, 1, dim_qk, dim_vo, bias_bytes);
  if (s.bytes <= kBiasGradientMaxBytes) return s;
  return BiasGradientSharedWith(1, 1, dim_qk, dim_vo, bias_bytes);
}

}  // namespace attn::device::sm90
