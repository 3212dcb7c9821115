// Shared memory of sm90/backward.cu and sm90/backward_head.cu, and of the bias and mask of
// sm90/backward_wide.cu. Offsets that both host and kernel compute.
#pragma once
#include "shared/operand.cuh"

namespace attn::device::sm90 {

inline constexpr int kBackwardWarpgroups = 2;  // consumers, of 64 keys each
inline constexpr int kBackwardTileKv = 64 * kBackwardWarpgroups;
inline constexpr int kBackwardStages = 2;  // of Q, dO, dS
inline constexpr int kBackwardBarrierBytes = 256;

// `dbias` of the Config. Stored: a tile of dS is a tile of dbias, in q's type. Summed: dS is added
// to f32 sums in global memory (shared/dbias_accum.cuh).
inline constexpr int kDbiasStored = 1;
inline constexpr int kDbiasSummed = 2;

// `persistent` of the Config: when a block takes its next tile of keys; see backward_items.cuh.
inline constexpr int kTakesEarly = 1;
inline constexpr int kTakesLate = 2;

// Offsets in bytes. 16-bit tiles are stored in chunks of 64 columns, [chunk][row][64], with
// 128-byte swizzle, and begin at multiples of 1024.
struct BackwardShared {
  int k = 0;       // [tile_kv][dim]
  int v = 0;       // [tile_kv][dim]
  int q = 0;       // [stages][tile_q][dim]
  int dout = 0;    // [stages][tile_q][dim]
  int ds = 0;      // [stages][tile_q][tile_kv]
  int dq = 0;      // f32 [warpgroups][4 warps] pieces of 16 x 64 in dq_accum's layout
  int o = 0;       // [tile_q][dim]; only of sm90/backward_head.cu
  int score = 0;   // [tile_q / 64] tiles of bias, then of the mask: score_tile.cuh
  int lse = 0;     // f32 [stages][tile_q], in units of log2
  int delta = 0;   // f32 [stages][tile_q]
  int ranges = 0;  // [stages][tile_q] {first key, number of keys}; only with row_ranges
  int barriers = 0;
  int visits = 0;  // TileList, BackwardVisitBytes() bytes; only with row_ranges
  int bytes = 0;   // without `visits`
};

// A bias or mask: bytes of an element (0 if there is none), and whether it broadcasts queries, so
// that a tile is one row.
struct ScoreOperand {
  int bytes = 0;
  bool one_row = false;
};
// Layout of a tile of bias, followed by one of the mask.
struct ScoreTiles {
  int mask = 0;  // offset
  int bytes = 0;
};
constexpr ScoreTiles ScoreTilesOf(int tile_q, int tile_kv, ScoreOperand bias, ScoreOperand mask) {
  constexpr int kAlignment = 128;  // of TMA
  constexpr int kSwizzle = 1024;   // where swizzled tiles begin
  const auto size = [&](ScoreOperand of) {
    if (!of.one_row) return tile_q * tile_kv * of.bytes;
    return (tile_kv * of.bytes + kAlignment - 1) / kAlignment * kAlignment;
  };
  ScoreTiles tiles;
  tiles.mask = size(bias);
  if (!mask.one_row) tiles.mask = (tiles.mask + kSwizzle - 1) / kSwizzle * kSwizzle;
  tiles.bytes = mask.bytes == 0 ? size(bias) : tiles.mask + size(mask);
  return tiles;
}

// TileList (backward_keys.cuh): two bits for each tile of queries, three with writes_sole_dq.
constexpr int BackwardVisitStride(bool writes_sole_dq) {
  return writes_sole_dq ? 12 : 8;
}
constexpr int BackwardVisitBytes(int tiles, bool writes_sole_dq) {
  return (tiles + 31) / 32 * BackwardVisitStride(writes_sole_dq);
}

// `score_bytes`: ScoreTiles::bytes.
constexpr BackwardShared BackwardSharedOf(int tile_q, int dim, bool row_ranges, int score_bytes) {
  BackwardShared s;
  s.v = kBackwardTileKv * dim * kOperandBytes;
  s.q = 2 * s.v;
  s.dout = s.q + kBackwardStages * tile_q * dim * kOperandBytes;
  s.ds = s.dout + kBackwardStages * tile_q * dim * kOperandBytes;
  s.dq = s.ds + kBackwardStages * tile_q * kBackwardTileKv * kOperandBytes;
  s.score = s.dq + tile_q * dim * 4;
  s.lse = s.score + score_bytes;
  s.delta = s.lse + kBackwardStages * tile_q * 4;
  s.ranges = s.delta + kBackwardStages * tile_q * 4;
  s.barriers = s.ranges + (row_ranges ? kBackwardStages * tile_q * 8 : 0);
  s.visits = s.barriers + kBackwardBarrierBytes;
  s.bytes = s.visits;
  return s;
}

// sm90/backward_head.cu: a block keeps dq, lse and delta of up to kHeadRows queries of a head, and
// visits tiles of 64 queries and 128 keys. It has one stage of dS. dq: f32 [rows / 16] pieces of 16
// x 64. lse, delta: f32 [rows].
inline constexpr int kHeadRows = 512;
inline constexpr int kHeadTileQ = 64;
inline constexpr int kHeadDim = 64;
constexpr BackwardShared BackwardHeadShared() {
  constexpr int kTileBytes = kHeadTileQ * kHeadDim * kOperandBytes;
  BackwardShared s;
  s.v = kBackwardTileKv * kHeadDim * kOperandBytes;
  s.q = 2 * s.v;
  s.dout = s.q + kBackwardStages * kTileBytes;
  s.ds = s.dout + kBackwardStages * kTileBytes;
  s.o = s.ds + kHeadTileQ * kBackwardTileKv * kOperandBytes;
  s.dq = s.o + kTileBytes;
  s.lse = s.dq + kHeadRows * kHeadDim * 4;
  s.delta = s.lse + kHeadRows * 4;
  s.barriers = s.delta + kHeadRows * 4;
  s.bytes = s.barriers + kBackwardBarrierBytes;
  return s;
}

}  // namespace attn::device::sm90
