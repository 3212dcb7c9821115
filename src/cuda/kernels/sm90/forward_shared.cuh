// Shared memory of sm90/forward.cu: offsets that host and kernel compute alike.
#pragma once
#include "shared/operand.cuh"

namespace attn::device::sm90 {

inline constexpr int kMaxWarpgroups = 4;
inline constexpr int kMaxStages = 4;

// Offsets in bytes. Tiles lie in chunks of 64 columns, [chunk][row][64], with 128-byte swizzle, and
// begin at multiples of 1024.
struct ForwardShared {
  int q = 0;         // [q_stages][tile_q][dim_qk]
  int k = 0;         // [stages][tile_kv][dim_qk]
  int v = 0;         // [stages][tile_kv][dim_vo]
  int score = 0;     // [stages][tile_q / 64] tiles [64][tile_kv] of bias, then of mask
  int o = 0;         // [tile_q][o_columns]
  int barriers = 0;  // ForwardBarriers, then the published tiles
  int bytes = 0;
};

inline constexpr int kBarrierBytes = 512;

// score_bytes: of one element of bias and mask together.
constexpr ForwardShared ForwardSharedOf(int tile_q, int tile_kv, int stages, int q_stages,
                                        int dim_qk, int dim_vo, int o_columns, int score_bytes) {
  ForwardShared s;
  s.k = q_stages * tile_q * dim_qk * kOperandBytes;
  s.v = s.k + stages * tile_kv * dim_qk * kOperandBytes;
  s.score = s.v + stages * tile_kv * dim_vo * kOperandBytes;
  s.o = s.score + stages * tile_q * tile_kv * score_bytes;
  s.barriers = s.o + tile_q * o_columns * kOperandBytes;
  s.bytes = s.barriers + kBarrierBytes;
  return s;
}

}  // namespace attn::device::sm90
