// Shared memory of sm80/backward.cu, for the host, which requests it, and the kernel.
#pragma once
#include "shared/operand.cuh"

namespace attn::device {

// Tiles of queries in a window: the block lists their visibility in one step.
inline constexpr int kBackwardWindow = 512;

// How the warps share the work; see sm80/backward.cu.
struct BackwardSplit {
  bool p_ds_in_smem = false;
  bool split_dk_dv = false;
  bool split_s_dp = false;

  bool operator==(const BackwardSplit&) const = default;
};

// The keys and queries of the scores that one warp computes.
constexpr int BackwardScoreKeys(int tile_kv, int warps, bool p_ds_in_smem) {
  return !p_ds_in_smem ? tile_kv / warps : tile_kv < 64 ? 16 : 32;
}
constexpr int BackwardScoreQueries(int tile_q, int tile_kv, int warps, bool p_ds_in_smem) {
  const int queries = tile_q * (tile_kv / BackwardScoreKeys(tile_kv, warps, p_ds_in_smem)) / warps;
  return p_ds_in_smem && queries < 16 ? 16 : queries;
}

// Offsets in bytes; tiles begin at multiples of 128.
struct BackwardShared {
  int k = 0;          // [tile_kv][dim_qk]; after the loop dK, then dV overlay all tiles
  int v = 0;          // [tile_kv][dim_vo]
  int q = 0;          // [stages][tile_q][dim_qk]
  int dout = 0;       // [stages][tile_q][dim_vo]
  int ds = 0;         // [tile_kv][tile_q]: dS transposed
  int p = 0;          // [tile_kv][tile_q]: P transposed; only with p_ds_in_smem
  int bias = 0;       // [warps][queries of a warp][keys of a warp]
  int mask = 0;       // the same shape, 1 byte per element
  int swap = 0;       // [warps][keys of a warp][16] f32 that warps exchange; only with split_s_dp
  int lse_delta = 0;  // [tile_q] {lse in units of log2, delta}
  int tiles_to_visit = 0;  // one bit per query tile of the window: some row sees a key
  int partial = 0;         // one bit per query tile: some row does not see every key
  int semaphore = 0;       // address of the dq_semaphore to release next; only if deterministic
  int bytes = 0;
};

constexpr BackwardShared BackwardSharedOf(int tile_q, int tile_kv, int stages, int dim_qk,
                                          int dim_vo, const BackwardSplit& split, int warps,
                                          int bias_bytes, bool mask,
                                          int operand_bytes = kOperandBytes) {
  BackwardShared s;
  s.v = s.k + tile_kv * dim_qk * operand_bytes;
  s.q = s.v + tile_kv * dim_vo * operand_bytes;
  s.dout = s.q + stages * tile_q * dim_qk * operand_bytes;
  s.ds = s.dout + stages * tile_q * dim_vo * operand_bytes;
  s.p = s.ds + tile_kv * tile_q * operand_bytes;
  s.bias = s.p + (split.p_ds_in_smem ? tile_kv * tile_q * operand_bytes : 0);
  s.mask = s.bias + tile_q * tile_kv * bias_bytes;
  s.swap = s.mask + (mask ? tile_q * tile_kv : 0);
  s.lse_delta = s.swap + (split.split_s_dp ? warps * 32 * 16 * 4 : 0);
  s.tiles_to_visit = s.lse_delta + tile_q * 8;
  s.partial = s.tiles_to_visit + kBackwardWindow / 8;
  s.semaphore = s.partial + kBackwardWindow / 8;
  s.bytes = s.semaphore + 8;
  return s;
}

}  // namespace attn::device
