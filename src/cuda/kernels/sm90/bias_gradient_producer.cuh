// The producer warps of sm90/bias_gradient.cu:
//   TileLoader  warp 0: loads the bias once, Q, K, dO and V of each visit, by TMA
//   RowLoader   warp 1: loads lse, delta and the mask of each visit
#pragma once
#include "ptx/memory.cuh"
#include "ptx/tma.cuh"
#include "shared/score.cuh"
#include "shared/score_entries.cuh"
#include "sm90/bias_gradient_barriers.cuh"
#include "sm90/bias_gradient_tile.cuh"
#include "sm90/score_tile.cuh"

namespace sm90::bias_gradient {

// Run() is called by one thread.
struct TileLoader {
  const BackwardParams& p;
  const BlockTile& tile;
  unsigned base;  // shared memory
  Barriers barriers;

  __device__ __forceinline__ void Run() const {
    tile.ForEachVisit(p.common, [&](int step, int seq_idx, int head) {
      const int head_kv = head / p.common.heads_per_kv;
      const int qk = step % kStagesQk;
      const unsigned qk_ready = barriers.At(Barriers::kQkReady + qk);
      barriers.Wait(Barriers::kQkFree + qk, step / kStagesQk + 1);
      ptx::BarrierExpect(qk_ready, 2 * kQkBytes);
      Load<kChunksQk, kBoxRows>(&p.q, kShared.q + qk * kQkBytes, qk_ready, tile.i0, head, seq_idx);
      Load<kChunksQk, kTile>(&p.k, kShared.k + qk * kQkBytes, qk_ready, tile.j0, head_kv, seq_idx);
      if (step == 0) LoadBias();
      const int vo = step % kStagesVo;
      const unsigned vo_ready = barriers.At(Barriers::kVoReady + vo);
      barriers.Wait(Barriers::kVoFree + vo, step / kStagesVo + 1);
      ptx::BarrierExpect(vo_ready, 2 * kVoBytes);
      Load<kChunksVo, kBoxRows>(&p.dout, kShared.dout + vo * kVoBytes, vo_ready, tile.i0, head,
                                seq_idx);
      Load<kChunksVo, kTile>(&p.v, kShared.v + vo * kVoBytes, vo_ready, tile.j0, head_kv, seq_idx);
    });
  }

 private:
  // Loads kTile rows from `row` on, in boxes of kRows rows. `to`: offset in shared memory. Rows
  // past the tensor's end are zeros; they affect only elements of dbias that are not stored.
  template <int kChunks, int kRows>
  __device__ __forceinline__ void Load(const void* map, int to, unsigned ready, int row, int head,
                                       int seq_idx) const {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
#pragma unroll
      for (int r = 0; r < kTile; r += kRows) {
        ptx::TmaLoad(base + static_cast<unsigned>(to + c * kChunkBytes + r * 128), map, ready,
                     c * 64, row + r, head, seq_idx, ptx::kEvictLast);
      }
    }
  }
  __device__ __forceinline__ void LoadBias() const {
    using Layout = ScoreTile<kBiasBytes, kTile>;
    const unsigned ready = barriers.At(Barriers::kBiasReady);
    ptx::BarrierExpect(ready, kTile * kTile * kBiasBytes);
#pragma unroll
    for (int n = 0; n < kWarpgroups; ++n) {
#pragma unroll
      for (int c = 0; c < Layout::kBoxes; ++c) {
        ptx::TmaLoad(
            base + static_cast<unsigned>(kShared.bias + n * Layout::kBytes + c * Layout::kBoxBytes),
            &p.bias, ready, tile.j0 + c * (Layout::kRowBytes / kBiasBytes), tile.i0 + 64 * n,
            tile.head, tile.entry, ptx::kEvictFirst);
      }
    }
  }
};

// Run() is called by a warp.
struct RowLoader {
  const BackwardParams& p;
  const BlockTile& tile;
  unsigned base;  // shared memory
  Barriers barriers;

  __device__ __forceinline__ void Run() const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    tile.ForEachVisit(p.common, [&](int step, int seq_idx, int head) {
      constexpr int kRows = kTile / 32;
      const int stage = step % kStagesVo;
      const unsigned hidden = kHasMask ? HiddenKeys(seq_idx, head) : 0;
      float2 rows[kRows];
#pragma unroll
      for (int n = 0; n < kRows; ++n) {
        const int i = tile.i0 + 32 * n + lane;
        rows[n] = {shared::kInfinity, 0.0f};
        if (i < p.common.max_len_q) {
          rows[n] = *reinterpret_cast<const float2*>(
              shared::RowAddress(p.common.lse_delta, seq_idx, i, head));
        }
      }
      barriers.Wait(Barriers::kRowsFree + stage, step / kStagesVo + 1);
#pragma unroll
      for (int n = 0; n < kRows; ++n) {
        const int at = kShared.rows + 8 * (stage * kTile + 32 * n + lane);
        ptx::StoreShared64(base + static_cast<unsigned>(at), rows[n].x, rows[n].y);
      }
      if (kHasMask && lane < 4) {
        const int at = kShared.hidden + 4 * (4 * stage + lane);
        ptx::StoreShared32(base + static_cast<unsigned>(at), hidden);
      }
      ptx::BarrierArrive(barriers.At(Barriers::kRowsReady + stage));
    });
  }

 private:
  // Returns word lane % 4 of the visit's mask. Bit 2 i + e of word c is set if key 8 i + 2 c + e of
  // the tile is hidden, so a consumer's lane needs word lane % 4 alone.
  __device__ __forceinline__ unsigned HiddenKeys(int seq_idx, int head) const {
    const Arguments& a = p.common;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int first = tile.j0 + lane / 2 * 8 + lane % 2;
    const char* row = shared::ScoreAddress(a.mask, shared::MaskEntry(a, seq_idx), head, 0, first);
    unsigned word = 0;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const bool hides = first + 2 * c < a.max_len_kv && row[2 * c * a.mask.stride_kv] == 0;
      const unsigned bits = __ballot_sync(~0u, hides);
      if (lane % 4 == c) word = bits;
    }
    return word;
  }
};

}  // namespace sm90::bias_gradient
