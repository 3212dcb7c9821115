// Loads tiles by TMA and writes zeros past the end of a sequence, for sm90/backward.cu and
// sm90/backward_wide.cu.
#pragma once
#include "ptx/memory.cuh"
#include "ptx/tma.cuh"
#include "ptx/warpgroup.cuh"
#include "sm90/backward_keys.cuh"
#include "sm90/score_tile.cuh"

namespace sm90 {

// Called by one thread. `to`: offset in shared memory. `ready`: address of the barrier that counts
// the load.
struct TileLoads {
  const BackwardParams& p;
  const KeyTile& keys;
  unsigned base;  // shared memory
  int rank = 0;   // the block loads columns from rank * kColumns on

  // Loads the block's keys of K or V, kColumns columns.
  template <int kColumns>
  __device__ __forceinline__ void Keys(const void* map, int to, unsigned ready) const {
    int row = keys.j0;
    int entry = keys.seq.idx;
    if constexpr (kLengths) {
      row += static_cast<int>(keys.seq.first_kv);
      if (p.common.packed_kv != 0) entry = 0;
    }
    ptx::BarrierExpect(ready, kTileKv * kColumns * kOperandBytes);
#pragma unroll
    for (int c = 0; c < kColumns / 64; ++c) {
      ptx::TmaLoad(base + to + c * kTileKv * 128, map, ready, rank * kColumns + c * 64, row,
                   keys.head_kv, entry, ptx::kEvictFirst);
    }
  }
  // Loads the queries from i0 of Q or dO.
  template <int kColumns>
  __device__ __forceinline__ void Queries(const void* map, int to, unsigned ready, int head,
                                          int i0) const {
    int row = i0;
    int entry = keys.seq.idx;
    if constexpr (kLengths) {
      row += static_cast<int>(keys.seq.first_q);
      if (p.common.packed_q != 0) entry = 0;
    }
    ptx::BarrierExpect(ready, kTileQ * kColumns * kOperandBytes);
#pragma unroll
    for (int c = 0; c < kColumns / 64; ++c) {
      ptx::TmaLoad(base + to + c * kTileQ * 128, map, ready, rank * kColumns + c * 64, row, head,
                   entry, ptx::kEvictLast);
    }
  }
  // Loads a tile of the bias and one of the mask.
  __device__ __forceinline__ void Scores(int to, unsigned ready, int head, int i0) const {
    ptx::BarrierExpect(ready,
                       ScoreBytes<kBiasBytes, kBiasRow>() + ScoreBytes<kMaskBytes, kMaskRow>());
    if constexpr (kBiasBytes > 0) {
      ScoresOf<kBiasBytes, kBiasRow>(&p.bias, BiasPlace(p.common, head, keys.seq.idx), to, ready,
                                     i0);
    }
    if constexpr (kMaskBytes > 0) {
      ScoresOf<kMaskBytes, kMaskRow>(&p.mask, MaskPlace(p.common, head, keys.seq.idx),
                                     to + kTilesOfScores.mask, ready, i0);
    }
  }

 private:
  template <int bytes, bool one_row>
  __device__ __forceinline__ static constexpr int ScoreBytes() {
    return (one_row ? 1 : kTileQ) * kTileKv * bytes;
  }
  template <int bytes, bool one_row>
  __device__ __forceinline__ void ScoresOf(const void* map, const ScorePlace& place, int to,
                                           unsigned ready, int i0) const {
    if constexpr (one_row) {
      ptx::TmaLoad(base + to, map, ready, keys.j0, 0, place.head, place.entry, ptx::kEvictLast);
    } else {
      using Layout = ScoreTile<bytes, kTileKv>;
#pragma unroll
      for (int n = 0; n < kTileQ / 64; ++n) {
#pragma unroll
        for (int c = 0; c < Layout::kBoxes; ++c) {
          ptx::TmaLoad(base + to + n * Layout::kBytes + c * Layout::kBoxBytes, map, ready,
                       keys.j0 + c * (Layout::kRowBytes / bytes), i0 + 64 * n, place.head,
                       place.entry, ptx::kEvictFirst);
        }
      }
    }
  }
};

// Rows of q, k, v and dout past a sequence's length may contain anything, even rows of the next
// sequence, and 0 * NaN is NaN. With `lengths` a warp therefore overwrites them with zeros in
// shared memory, from the tile's row `rows` on.
template <int kRows, int kColumns>
__device__ __forceinline__ void ZeroRows(unsigned tile, int rows) {
#pragma unroll 1
  for (int n = rows * 8 + ptx::RereadThreadIdx() % 32; n < kRows * 8; n += 32) {
#pragma unroll
    for (int c = 0; c < kColumns / 64; ++c) {
      ptx::StoreShared128(tile + static_cast<unsigned>(c * kRows * 128 + n * 16), 0, 0, 0, 0);
    }
  }
  ptx::FenceAsyncProxy();
}

}  // namespace sm90
