// A consumer warpgroup of sm90/bias_gradient.cu: 64 queries of the block's tile.
//
// Order of a visit: issue S and dP; compute P while dP is computed; add P (dP - delta) to the sums.
// Meanwhile the tensor cores run the other warpgroup's products.
#pragma once
#include "ptx/math.cuh"
#include "ptx/memory.cuh"
#include "ptx/mma.cuh"
#include "ptx/wgmma.cuh"
#include "shared/score.cuh"
#include "sm90/bias_gradient_barriers.cuh"
#include "sm90/bias_gradient_tile.cuh"
#include "sm90/score_tile.cuh"

namespace sm90::bias_gradient {

// Reads the bias of a warp's 16 queries from the block's tile in shared memory.
struct BiasReader {
  using Layout = ScoreTile<kBiasBytes, kTile>;
  unsigned first;

  // `row`: the warp's first query, in the warpgroup.
  __device__ __forceinline__ BiasReader(unsigned base, int warpgroup, int row) {
    const unsigned tile = base + static_cast<unsigned>(kShared.bias + warpgroup * Layout::kBytes);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if constexpr (kBiasBytes == 2) {
      first = tile + Layout::At(row + lane % 16, lane / 16 * 8);
    } else {
      first = tile + Layout::At(row + lane / 4, lane % 4 * 2);
    }
  }

  // Loads the bias of 16 keys from 16 k on, in the order of scores.
  __device__ __forceinline__ void Load(int k, float (&bias)[8]) const {
    if constexpr (kBiasBytes == 2) {
      // Four 8 x 8 matrices, (keys 0-7, 8-15) x (queries 0-7, 8-15).
      unsigned pairs[4];
      ptx::LoadMatrix(pairs, Layout::Next(first, 2 * k, 0));
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        bias[2 * n] = ptx::Low<config::bias_type>(pairs[n]);
        bias[2 * n + 1] = ptx::High<config::bias_type>(pairs[n]);
      }
    } else {
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const uint2 pair = ptx::LoadShared64(Layout::Next(first, 2 * k + n / 2, n % 2));
        bias[2 * n] = __uint_as_float(pair.x);
        bias[2 * n + 1] = __uint_as_float(pair.y);
      }
    }
  }
};

struct Consumer {
  const BackwardParams& p;
  const BlockTile& tile;
  unsigned base;  // shared memory
  Barriers barriers;
  int warpgroup;
  float scale;  // of raw products, times log2(e)
  Scores sums{};

  __device__ __forceinline__ Consumer(const BackwardParams& params, const BlockTile& block_tile,
                                      unsigned memory, int group)
      : p(params),
        tile(block_tile),
        base(memory),
        barriers(memory),
        warpgroup(group),
        scale(params.common.scale * shared::kLog2E) {}

  // Sums dS over the visits.
  __device__ __forceinline__ void Run() {
    if (tile.num_visits == 0) return;
    barriers.Wait(Barriers::kBiasReady, 0);
    if (tile.is_full) {
      Sum<false>();
    } else {
      Sum<true>();
    }
  }

  // Read again where they are used, so that the visits keep no value of them in registers.
  __device__ __forceinline__ static int Warp() { return ptx::RereadThreadIdx() / 32 % 4; }
  __device__ __forceinline__ static int Lane() { return ptx::RereadThreadIdx() % 32; }
  // Accumulators 4 i + 2 h and 4 i + 2 h + 1 belong to query Row(h) of the tile, and to keys 8 i +
  // Column() and the next one.
  __device__ __forceinline__ int Row(int h) const {
    return 64 * warpgroup + 16 * Warp() + Lane() / 4 + 8 * h;
  }
  __device__ __forceinline__ static int Column() { return 2 * (Lane() % 4); }

 private:
  template <bool kPartial>
  __device__ __forceinline__ void Sum() {
    const BiasReader bias(base, warpgroup, 16 * Warp());
    const int row = Row(0);
#pragma unroll 1
    for (int step = 0; step < tile.num_visits; ++step) {
      const int qk = step % kStagesQk;
      const int vo = step % kStagesVo;
      Scores s;
      Scores dp;
      barriers.Wait(Barriers::kQkReady + qk, step / kStagesQk);
      IssueProduct<config::dim_qk>(kShared.q + qk * kQkBytes, kShared.k + qk * kQkBytes, s);
      barriers.Wait(Barriers::kVoReady + vo, step / kStagesVo);
      IssueProduct<config::dim_vo>(kShared.dout + vo * kVoBytes, kShared.v + vo * kVoBytes, dp);
      barriers.Wait(Barriers::kRowsReady + vo, step / kStagesVo);
      const float2 rows[2] = {LoadRow(vo, row), LoadRow(vo, row + 8)};
      ptx::WgmmaWait<1>();
      barriers.ArriveByWarp(Barriers::kQkFree + qk);
      ComputeP<kPartial>(bias, rows, vo, s);
      ptx::BarrierArrive(barriers.At(Barriers::kRowsFree + vo));
      ptx::WgmmaWait<0>();
      barriers.ArriveByWarp(Barriers::kVoFree + vo);
#pragma unroll
      for (int n = 0; n < kTile / 2; ++n) {
        sums[n] = fmaf(s[n], dp[n] - rows[n / 2 % 2].y, sums[n]);
      }
    }
  }

  // to = X Y^T: this warpgroup's rows of X, all rows of Y. x_at, y_at: offsets in shared memory.
  template <int kDim>
  __device__ __forceinline__ void IssueProduct(int x_at, int y_at, Scores& to) const {
    const ptx::MatrixDescriptor x(base + static_cast<unsigned>(x_at + warpgroup * 64 * 128),
                                  kChunkBytes);
    const ptx::MatrixDescriptor y(base + static_cast<unsigned>(y_at), kChunkBytes);
    ptx::WgmmaFence();
#pragma unroll
    for (int n = 0; n < kDim / 16; ++n) {
      const unsigned offset = static_cast<unsigned>(n / 4 * kChunkBytes + n % 4 * 32);
      ptx::WgmmaShared<kDtype, kTile>(to, x.At(offset), y.At(offset), n > 0);
    }
    ptx::WgmmaCommit();
  }

  // Loads {lse, delta} of a query of the tile.
  __device__ __forceinline__ float2 LoadRow(int stage, int row) const {
    const uint2 pair =
        ptx::LoadShared64(base + static_cast<unsigned>(kShared.rows + 8 * (stage * kTile + row)));
    return {__uint_as_float(pair.x), __uint_as_float(pair.y)};
  }

  // Loads the word of the mask that has the bits of this lane's keys.
  __device__ __forceinline__ unsigned LoadHidden(int stage) const {
    const int at = kShared.hidden + 4 * (4 * stage + Lane() % 4);
    return ptx::LoadShared32(base + static_cast<unsigned>(at));
  }

  // Turns raw products into P. `stage`: of the mask.
  template <bool kPartial>
  __device__ __forceinline__ void ComputeP(const BiasReader& bias_reader, const float2 (&rows)[2],
                                           int stage, Scores& s) const {
    // Query Row(h) sees keys [first, last], counted from Column().
    int first[2];
    int last[2];
#pragma unroll
    for (int h = 0; h < 2 && kPartial; ++h) {
      const int distance = tile.i0 + Row(h) - tile.j0 - Column();
      first[h] = distance - tile.band.high;
      last[h] = distance - tile.band.low;
    }
#pragma unroll
    for (int k = 0; k < kTile / 16; ++k) {
      float bias[8];
      bias_reader.Load(k, bias);
      // Read for each k, because there is no register to keep it.
      const unsigned hidden = kHasMask ? LoadHidden(stage) : 0;
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        const int h = n / 2 % 2;
        float& x = s[8 * k + n];
        x = fmaf(x, scale, -rows[h].x);
        x = ptx::Exp2(fmaf(bias[n], shared::kLog2E, x));
        if constexpr (kPartial) {
          const int key = 16 * k + n / 4 * 8 + n % 2;
          if (key < first[h]) x = 0.0f;
          if (key > last[h]) x = 0.0f;
        }
        if constexpr (kHasMask) {
          constexpr unsigned kBit = 1;
          if ((hidden & kBit << (4 * k + n / 4 * 2 + n % 2)) != 0) x = 0.0f;
        }
      }
    }
  }
};

}  // namespace sm90::bias_gradient
