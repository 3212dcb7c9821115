// sm80/decode.cu: parameters and shared memory, for the host and the kernel.
#pragma once
#include "shared/arguments.cuh"
#include "shared/cache.cuh"
#include "shared/operand.cuh"

namespace attn::device {

struct DecodeParams {
  Arguments common;
  Cache cache;
  Descale descale_k, descale_v;

  // Index of a block: ((b * heads_kv + head_kv) * splits + split) * row_tiles + tile.
  int row_tiles = 1;
  int tile_rows = 0;  // rows per tile in the partial results
  int splits = 1;
  int split_keys = 0;  // keys per split; 0: the keys that a tile sees are divided evenly

  // Workspace, for each (b, head_kv, tile) and split: f32 rows of o before the division by the sum,
  // [tile_rows][dim]; {max in units of log2, sum} of each row; and a word that marks arrival
  // (decode_merge.cuh).
  char* partial_o = nullptr;
  char* partial_stats = nullptr;
  unsigned long long* arrivals = nullptr;
};

// Offsets in bytes.
struct DecodeShared {
  int k = 0;        // [groups][stages][tile_kv][dim]; after the loop f32 o [groups][tile_q][dim]
  int v = 0;        // [groups][stages][tile_kv][dim]
  int present = 0;  // [groups][stages][warps of a group] bit r: row r of the slice has a page
  int scales = 0;   // descale_rows: factors of K and of V [groups][stages][2][tile_kv]
  int stats = 0;    // [groups][tile_q] {max, sum}
  int merged_stats = 0;  // [tile_q] {max, sum} of all groups, for the other blocks of the cluster
  int q = 0;             // dims above 128: fragments of Q [warps][dim / 16][lane][4]
  int merges = 0;        // whether the block merges the splits
  int bytes = 0;
};

// Size of an element of K and V in bytes.
constexpr int KvBytes(bool quantized) {
  return quantized ? 1 : kOperandBytes;
}

constexpr DecodeShared DecodeSharedOf(int tile_q, int tile_kv, int warps, int stages, int dim,
                                      bool quantized, bool descale_rows) {
  const int groups = warps / (tile_q / 16);
  const int tile_bytes = tile_kv * dim * KvBytes(quantized);
  const int o_bytes = groups * tile_q * dim * 4;
  DecodeShared s;
  s.v = s.k + groups * stages * tile_bytes;
  s.present = s.v + groups * stages * tile_bytes;
  if (s.present < o_bytes) s.present = o_bytes;
  s.scales = (s.present + warps * stages * 4 + 15) / 16 * 16;
  s.stats = s.scales + (descale_rows ? groups * stages * tile_kv * 8 : 0);
  s.merged_stats = s.stats + groups * tile_q * 8;
  s.q = s.merged_stats + tile_q * 8;
  s.merges = s.q + (dim > 128 ? warps * 32 * dim : 0);
  s.bytes = s.merges + 16;
  return s;
}

// Keys of a tile that each warp loads, in most cases 8 KB of K and V. 8-bit tiles of 64 rows load
// fewer, because they have no registers for more scores.
constexpr int DecodeSliceOf(int dim, int tile_q, bool quantized) {
  return dim <= 64 || (quantized && dim <= 128 && tile_q == 16) ? 32 : 16;
}

}  // namespace attn::device
