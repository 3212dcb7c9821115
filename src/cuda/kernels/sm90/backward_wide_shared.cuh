// Shared memory of sm90/backward_wide.cu: offsets that both host and kernel compute.
#pragma once
#include "shared/operand.cuh"

namespace attn::device::sm90 {

inline constexpr int kWideTileQ = 64;
inline constexpr int kWideWarpgroups = 2;  // consumers
inline constexpr int kWideQStages = 2;
inline constexpr int kWideDsStages = 2;
inline constexpr int kWideBarrierBytes = 256;         // of a block
inline constexpr int kWideClusterBarrierBytes = 512;  // the same in a cluster

struct WideTiles {
  int dim = 0;     // of q and k, in a block
  int dim_vo = 0;  // of v and dout, in a block, at most dim
  int tile_kv = 0;
  int dout_stages = 0;
  int cluster = 1;  // blocks that share the columns
};

// Offsets in bytes. 16-bit tiles are stored in chunks of 64 columns, [chunk][row][64], with
// 128-byte swizzle, and begin at multiples of 1024.
struct BackwardWideShared {
  int k = 0;      // [tile_kv][dim]
  int v = 0;      // [tile_kv][dim_vo]
  int q = 0;      // [stages][tile_q][dim]
  int dout = 0;   // [stages][tile_q][dim_vo]
  int p = 0;      // rounded, [tile_kv][tile_q]
  int ds = 0;     // rounded, [stages][tile_kv][tile_q]
  int exact = 0;  // P in f32: [tile_kv / 8][128 threads][4], each thread's accumulators. Before P,
                  // in a cluster: the other block's part of S
  int dp = 0;     // in a cluster: the other block's part of dP, like `exact`
  int score = 0;  // a tile of bias, then one of the mask: score_tile.cuh
  int barriers = 0;
  int visits = 0;  // TileList, BackwardVisitBytes() bytes; only with row_ranges
  int bytes = 0;   // without `visits`
};

// `option_bytes`: ScoreTiles::bytes.
constexpr BackwardWideShared BackwardWideSharedOf(const WideTiles& tiles, int option_bytes) {
  const int score_bytes = kWideTileQ * tiles.tile_kv * kOperandBytes;
  BackwardWideShared s;
  s.v = tiles.tile_kv * tiles.dim * kOperandBytes;
  s.q = s.v + tiles.tile_kv * tiles.dim_vo * kOperandBytes;
  s.dout = s.q + kWideQStages * kWideTileQ * tiles.dim * kOperandBytes;
  s.p = s.dout + tiles.dout_stages * kWideTileQ * tiles.dim_vo * kOperandBytes;
  s.ds = s.p + score_bytes;
  s.exact = s.ds + kWideDsStages * score_bytes;
  s.dp = s.exact + 2 * score_bytes;
  s.score = s.dp + (tiles.cluster > 1 ? 2 * score_bytes : 0);
  s.barriers = s.score + option_bytes;
  s.visits = s.barriers + (tiles.cluster > 1 ? kWideClusterBarrierBytes : kWideBarrierBytes);
  s.bytes = s.visits;
  return s;
}

}  // namespace attn::device::sm90
