// Shared memory of the backward on Hopper: offsets that host and kernel compute alike.
#pragma once

namespace attn::device::sm90 {

// Rings of two stages; two warpgroups of 64 keys each.
inline constexpr int kBackwardStages = 2;
inline constexpr int kBackwardTileKv = 128;
inline constexpr int kBackwardBarrierBytes = 256;

// Offsets in bytes. 16-bit tiles lie in chunks of 64 columns, [chunk][row][64], with 128-byte
// swizzle, and begin at multiples of 1024.
struct BackwardShared {
  int k = 0;          // [tile_kv][dim]
  int v = 0;          // [tile_kv][dim]
  int q = 0;          // [stages][tile_q][dim]
  int dout = 0;       // [stages][tile_q][dim]
  int ds = 0;         // [stages][tile_q][tile_kv]
  int dq = 0;         // f32 accumulators, [2 warpgroups][tile_q * dim / 2], as bulk reductions read
  int lse_delta = 0;  // [stages][tile_q] f32 pairs
  int barriers = 0;
  int bytes = 0;
};

constexpr BackwardShared BackwardSharedOf(int tile_q, int dim) {
  BackwardShared s;
  s.v = kBackwardTileKv * dim * 2;
  s.q = 2 * s.v;
  s.dout = s.q + kBackwardStages * tile_q * dim * 2;
  s.ds = s.dout + kBackwardStages * tile_q * dim * 2;
  s.dq = s.ds + kBackwardStages * tile_q * kBackwardTileKv * 2;
  s.lse_delta = s.dq + tile_q * dim * 4;
  s.barriers = s.lse_delta + kBackwardStages * tile_q * 8;
  s.bytes = s.barriers + kBackwardBarrierBytes;
  return s;
}

}  // namespace attn::device::sm90
