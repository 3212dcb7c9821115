// sm80/bias_gradient.cu: loads of the tiles of a visit.
#pragma once
#include "sm80/bias_gradient_visits.cuh"

namespace sm80::bias_gradient {

constexpr int kQBytes = kTileQ * kDimQk * kElementBytes;
constexpr int kDoutBytes = kTileQ * kDimVo * kElementBytes;
constexpr int kKBytes = kTileKv * kDimQk * kElementBytes;
constexpr int kVBytes = kTileKv * kDimVo * kElementBytes;

__device__ __forceinline__ void LoadQK(const Arguments& a, const Visit& visit, int warp, int stage,
                                       unsigned base) {
  const Sequence seq = SequenceOf(a, visit.seq_idx);
  const int q0 = visit.i0 - warp * kRows;
  TileLoader<kDimQk, kTileQ, kThreads, kDtype>(
      a.q, a.dim_qk, RowAddress(a.q, seq.idx, seq.first_q + q0, visit.head))
      .Load(base + kShared.q + static_cast<unsigned>(stage * kQBytes), 0, seq.len_q - q0);
  TileLoader<kDimQk, kTileKv, kThreads, kDtype>(
      a.k, a.dim_qk, RowAddress(a.k, seq.idx, seq.first_kv + visit.j0, visit.head / a.heads_per_kv))
      .Load(base + kShared.k + static_cast<unsigned>(stage * kKBytes), 0, seq.len_kv - visit.j0);
}

__device__ __forceinline__ void LoadDoutV(const Arguments& a, const Visit& visit, int warp,
                                          int stage, unsigned base) {
  const Sequence seq = SequenceOf(a, visit.seq_idx);
  const int q0 = visit.i0 - warp * kRows;
  TileLoader<kDimVo, kTileQ, kThreads, kDtype>(
      a.dout, a.dim_vo, RowAddress(a.dout, seq.idx, seq.first_q + q0, visit.head))
      .Load(base + kShared.dout + static_cast<unsigned>(stage * kDoutBytes), 0, seq.len_q - q0);
  TileLoader<kDimVo, kTileKv, kThreads, kDtype>(
      a.v, a.dim_vo, RowAddress(a.v, seq.idx, seq.first_kv + visit.j0, visit.head / a.heads_per_kv))
      .Load(base + kShared.v + static_cast<unsigned>(stage * kVBytes), 0, seq.len_kv - visit.j0);
}

// Loads the warp's rows of bias and mask. Skips a broadcast bias that is already in shared memory.
struct BiasMask {
  unsigned bias_tile, mask_tile;
  const char* loaded = nullptr;  // global address of the bias in shared memory, if complete

  __device__ __forceinline__ BiasMask(unsigned base, int warp) {
    bias_tile = base + kShared.bias + static_cast<unsigned>(warp * kRows * BiasTile::kRowBytes);
    mask_tile = base + kShared.mask + static_cast<unsigned>(warp * kRows * kTileKv);
  }

  // All lanes of the warp must have read the previous tiles.
  __device__ __forceinline__ void Load(const Arguments& a, const Visit& visit) {
    const Sequence seq = SequenceOf(a, visit.seq_idx);
    const char* bias = ScoreAddress(a.bias, BiasEntry(a, seq.idx), visit.head, visit.i0, visit.j0);
    const bool complete = visit.i0 + kRows <= seq.len_q && visit.j0 + kTileKv <= seq.len_kv;
    if (!complete || bias != loaded) {
      BiasTile::Load(bias_tile, a.bias, bias, seq.len_q - visit.i0, seq.len_kv - visit.j0);
    }
    loaded = complete ? bias : nullptr;
    if constexpr (config::mask != 0) {
      MaskTile::Load(mask_tile, a.mask,
                     ScoreAddress(a.mask, MaskEntry(a, seq.idx), visit.head, visit.i0, visit.j0),
                     seq.len_q - visit.i0, seq.len_kv - visit.j0);
    }
  }
};

}  // namespace sm80::bias_gradient
