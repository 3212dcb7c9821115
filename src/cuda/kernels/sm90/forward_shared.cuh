// Shared memory of sm90/forward.cu: offsets that both host and kernel compute.
#pragma once

namespace attn::device::sm90 {

inline constexpr int kStagedBytes = 2;  // an element of O: f16 or bf16
inline constexpr int kMaxWarpgroups = 4;
inline constexpr int kMaxStages = 4;
inline constexpr int kMaxRawStages = 8;
inline constexpr int kMaxWideStages = 8;     // of K, for dims above 256; f32: slots
inline constexpr int kMaxRawMaskStages = 6;  // with mask_bits
inline constexpr int kBitsStages = 4;        // tiles of the mask's bits

// Constants of the Config that determine the offsets.
struct ForwardTiles {
  int tile_q = 0;
  int tile_kv = 0;
  int stages = 0;
  int q_stages = 0;
  int dim_qk = 0;
  int dim_vo = 0;
  int o_columns = 0;
  int score_bytes = 0;     // bytes per element of the tiles of bias and mask together
  int element_bytes = 2;   // of q, k and v
  int raw_stages = 0;      // f8: of V; mask_bits: tiles of a warpgroup's mask
  bool mask_bits = false;  // the mask is turned into bits
  bool wide = false;       // dims above 256: stages of K of 64 columns, one of V, O staged in Q
  int bf16_parts = 0;      // f32: of an element; stages are slots of a ring of K and V
};

// Offsets in bytes. Tiles are stored in chunks of columns, [chunk][row][128 bytes] with 128-byte
// swizzle (64 bytes if a row has no more), and begin at multiples of 1024.
struct ForwardShared {
  int q = 0;         // [q_stages][tile_q][dim_qk]; f32: [part][tile_q][dim_qk]
  int k = 0;         // [stages][tile_kv][dim_qk]; wide: [stages][tile_kv][64]; f32: slots
  int v = 0;         // [stages][tile_kv][dim_vo]; wide: of one stage; f8: [stages][dim_vo][tile_kv]
  int raw_v = 0;     // f8: [raw_stages][tile_kv][dim_vo], before it is transposed
  int raw_mask = 0;  // mask_bits: [raw_stages] tiles [64][tile_kv] of the mask
  int bits = 0;      // mask_bits: [kBitsStages][tile_q][tile_kv / 8]
  int score = 0;     // [stages][tile_q / 64] tiles [64][tile_kv] of bias, then of mask
  int o = 0;         // [tile_q][o_columns]
  int barriers = 0;  // ForwardBarriers, then the published tiles
  int bytes = 0;
};

inline constexpr int kBarrierBytes = 1024;

// f32: a slot holds the parts of 64 tile_kv elements of K or V; O is stored from registers.
constexpr int SlotBytesOf(const ForwardTiles& t) {
  return 64 * t.tile_kv * 2 * t.bf16_parts;
}
constexpr ForwardShared SplitSharedOf(const ForwardTiles& t) {
  ForwardShared s;
  s.k = t.tile_q * t.dim_qk * 2 * t.bf16_parts;
  s.v = s.raw_v = s.raw_mask = s.bits = s.score = s.o = s.k;
  s.barriers = s.k + t.stages * SlotBytesOf(t);
  s.bytes = s.barriers + kBarrierBytes;
  return s;
}

constexpr ForwardShared ForwardSharedOf(const ForwardTiles& t) {
  if (t.bf16_parts > 0) return SplitSharedOf(t);
  ForwardShared s;
  s.k = t.q_stages * t.tile_q * t.dim_qk * t.element_bytes;
  s.v = s.k + t.stages * t.tile_kv * (t.wide ? 64 : t.dim_qk) * t.element_bytes;
  s.raw_v = s.v + (t.wide ? 1 : t.stages) * t.tile_kv * t.dim_vo * t.element_bytes;
  s.raw_mask = s.raw_v + (t.mask_bits ? 0 : t.raw_stages * t.tile_kv * t.dim_vo * t.element_bytes);
  s.bits = s.raw_mask + (t.mask_bits ? t.raw_stages * 64 * t.tile_kv : 0);
  s.score = s.bits + (t.mask_bits ? kBitsStages * t.tile_q * t.tile_kv / 8 : 0);
  const int scores_end = s.score + t.stages * t.tile_q * t.tile_kv * t.score_bytes;
  s.o = t.wide ? s.q : scores_end;
  s.barriers = scores_end + (t.wide ? 0 : t.tile_q * t.o_columns * kStagedBytes);
  s.bytes = s.barriers + kBarrierBytes;
  return s;
}

}  // namespace attn::device::sm90
