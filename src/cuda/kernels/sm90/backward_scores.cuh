// Code that the consumer warpgroups of sm90/backward.cu and sm90/backward_head.cu share: the
// products of 64 keys with a tile of queries, P and dS.
//
// S and dP are computed transposed (keys are rows), because P^T and dS^T, packed pairwise, are then
// the register operands of dV += P^T dO and dK += dS^T Q.
#pragma once
#include "ptx/math.cuh"
#include "ptx/memory.cuh"
#include "ptx/tma.cuh"
#include "ptx/warpgroup.cuh"
#include "ptx/wgmma.cuh"
#include "shared/score.cuh"
#include "sm90/backward_keys.cuh"
#include "sm90/backward_options.cuh"

namespace sm90 {

// Accumulators of a thread; see ptx/wgmma.cuh.
using KeyGradient = float[kDim / 2];  // 64 keys x dim
using Fragments = unsigned[kTileQ / 4];
using DqPart = float[64 / 2];  // 64 queries x 64 columns

// `rows` in the functions below: the index at which the tile's rows begin in lse, delta and ranges.
struct KeyWarpgroup {
  const BackwardParams& p;
  const KeyTile& keys;
  unsigned base;  // shared memory
  int warpgroup;
  int warp;  // of the warpgroup
  int lane;
  float scale;  // of raw products, times log2(e)
  KeyGradient dk{};
  KeyGradient dv{};

  __device__ __forceinline__ KeyWarpgroup(const BackwardParams& params, const KeyTile& tile,
                                          unsigned memory, int group)
      : p(params),
        keys(tile),
        base(memory),
        warpgroup(group),
        warp(static_cast<int>(threadIdx.x) / 32 % 4),
        lane(static_cast<int>(threadIdx.x) % 32),
        scale(params.common.scale * shared::kLog2E) {}

  // s = K Q^T or dp = V dO^T for this warpgroup's keys. `keys_at`: offset of K or V in shared
  // memory.
  __device__ __forceinline__ void IssueScores(int keys_at, const ptx::MatrixDescriptor& queries,
                                              Scores& to) const {
    const ptx::MatrixDescriptor rows(base + static_cast<unsigned>(keys_at + warpgroup * 64 * 128),
                                     kTileQ * 128);
    ptx::WgmmaFence();
#pragma unroll
    for (int n = 0; n < kDim / 16; ++n) {
      ptx::WgmmaShared<kDtype, kTileQ>(to, rows.At(n / 4 * kTileKv * 128 + n % 4 * 32),
                                       queries.At(n / 4 * kTileQ * 128 + n % 4 * 32), n > 0);
    }
    ptx::WgmmaCommit();
  }

  // dv += P^T dO or dk += dS^T Q
  __device__ __forceinline__ void IssueKeyGradient(const Fragments& pairs,
                                                   const ptx::MatrixDescriptor& queries,
                                                   KeyGradient& to) const {
    ptx::WgmmaFence();
#pragma unroll
    for (int n = 0; n < kTileQ / 16; ++n) {
      ptx::WgmmaRegisters<kDtype, kDim>(to, pairs + 4 * n, queries.At(n * 16 * 128), 1);
    }
    ptx::WgmmaCommit();
  }

  // Accumulators 4 i + 2 h and 4 i + 2 h + 1 belong to queries 8 i + Query() and the next one, and
  // to key Key(h).
  __device__ __forceinline__ int Query() const { return 2 * (lane % 4); }
  __device__ __forceinline__ int Key(int h) const {
    return keys.j0 + 64 * warpgroup + 16 * warp + lane / 4 + 8 * h;
  }
  // The warp's first key, in the tile.
  __device__ __forceinline__ int WarpKey() const { return 64 * warpgroup + 16 * warp; }
  // Loads lse or delta of queries 8 i + Query() and the next one.
  __device__ __forceinline__ float2 LoadRows(int rows_at, int first, int i) const {
    const uint2 pair =
        ptx::LoadShared64(base + static_cast<unsigned>(rows_at + 4 * (first + 8 * i + Query())));
    return {__uint_as_float(pair.x), __uint_as_float(pair.y)};
  }

  // Loads {first key, number of keys} of the same queries.
  __device__ __forceinline__ int4 LoadRanges(int first, int i) const {
    const uint4 pair = ptx::LoadShared128(
        base + static_cast<unsigned>(kShared.ranges + 8 * (first + 8 * i + Query())));
    return {static_cast<int>(pair.x), static_cast<int>(pair.y), static_cast<int>(pair.z),
            static_cast<int>(pair.w)};
  }

  // Draws the dropout bits of the tile of queries from i0 and the warp's keys. It reads the seed
  // again, because the copy in ScoreOptions would take registers while S and dP are issued.
  __device__ __forceinline__ DropBits DrawDrops(int head, int i0) const {
    return DrawDropBits(shared::DropoutOf(p.common, keys.seq.idx, head), p.common.keep_threshold,
                        i0, keys.j0 + WarpKey());
  }

  // Applies softcap, ALiBi and bias: turns raw products into log2(P).
  __device__ __forceinline__ void ModifyScores(const ScoreOptions& options, int rows,
                                               Scores& s) const {
    if constexpr (kHasScoreMod) {
      if (ScoreTerms::InSeries(p.common, s)) {
        ModifyAll<true>(options, rows, s);
      } else {
        ModifyAll<false>(options, rows, s);
      }
    }
  }
  template <bool in_series>
  __device__ __forceinline__ void ModifyAll(const ScoreOptions& options, int rows,
                                            Scores& s) const {
    const BiasReader reader{base + kShared.score, WarpKey()};
#pragma unroll
    for (int k = 0; k < kTileQ / 16; ++k) {
      float bias[8] = {};
      reader.Load(k, bias);
#pragma unroll
      for (int i = 2 * k; i < 2 * k + 2; ++i) {
        const float2 lse = LoadRows(kShared.lse, rows, i);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          float& x = s[4 * i + 2 * h];
          float& y = s[4 * i + 2 * h + 1];
          const int n = i % 2 * 4 + 2 * h;
          x = options.Score<in_series>(p.common, x, 8 * i, 8 * h, bias[n], -lse.x);
          y = options.Score<in_series>(p.common, y, 8 * i + 1, 8 * h, bias[n + 1], -lse.y);
        }
      }
    }
  }

  // s of a hidden pair: P, or log2(P) with softcap.
  static constexpr float kHidden = kSoftcap ? -shared::kInfinity : 0.0f;

  // The pairs of a partial tile that are hidden from this thread's keys.
  struct HiddenPairs {
    // Bias past a sequence's end may contain anything, so lse = inf alone does not make P 0.
    static constexpr bool kHidesPastEnd = kLengths && kBiasBytes > 0;
    static constexpr bool kHidesAfter = config::left_bound != 0 || kHidesPastEnd;
    const KeyWarpgroup& group;
    // Key h is visible to queries [first[h], last[h]], counted from this thread's query 0.
    int first[2];
    int last[2];

    __device__ __forceinline__ HiddenPairs(const KeyWarpgroup& keys_of, int i0) : group(keys_of) {
#pragma unroll
      for (int h = 0; h < 2 && !kRowRanges; ++h) {
        const KeyTile& keys = group.keys;
        const int distance = group.Key(h) - i0 - group.Query();
        first[h] = group.Key(h) < keys.seq.len_kv ? distance + keys.band.low : kTileQ;
        last[h] = distance + keys.band.high;
        if constexpr (kHidesPastEnd) {
          const int rest = keys.seq.len_q - 1 - i0 - group.Query();
          last[h] = config::left_bound != 0 ? min(last[h], rest) : rest;
        }
      }
    }
    // Hides pairs of query 8 i + Query() (x), of the next one (y), and key h. `range`: their
    // LoadRanges().
    __device__ __forceinline__ void Hide(int i, int h, const int4& range, float& x,
                                         float& y) const {
      if constexpr (kRowRanges) {
        const int key = group.Key(h);
        if (static_cast<unsigned>(key - range.x) >= static_cast<unsigned>(range.y)) x = kHidden;
        if (static_cast<unsigned>(key - range.z) >= static_cast<unsigned>(range.w)) y = kHidden;
      } else {
        if (8 * i < first[h]) x = kHidden;
        if (8 * i + 1 < first[h]) y = kHidden;
        if (kHidesAfter && 8 * i > last[h]) x = kHidden;
        if (kHidesAfter && 8 * i + 1 > last[h]) y = kHidden;
      }
    }
  };

  // Turns s into P in f32. s is log2(P) on entry with kHasScoreMod, otherwise raw products. With
  // softcap s stays log2(P), since the derivative follows from it. kPartial: hides the pairs of a
  // partial tile; otherwise HidePartial() may follow.
  template <bool kPartial>
  __device__ __forceinline__ void ComputeP(int rows, int i0, Scores& s) const {
    const HiddenPairs hidden(*this, i0);
    const MaskReader mask(base + kShared.score + kTilesOfScores.mask, WarpKey());
#pragma unroll
    for (int i = 0; i < kTileQ / 8; ++i) {
      float2 lse{};
      if constexpr (!kHasScoreMod) lse = LoadRows(kShared.lse, rows, i);
      int4 range{};
      if constexpr (kPartial && kRowRanges) range = LoadRanges(rows, i);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float& x = s[4 * i + 2 * h];
        float& y = s[4 * i + 2 * h + 1];
        if constexpr (!kHasScoreMod) {
          x = fmaf(x, scale, -lse.x);
          y = fmaf(y, scale, -lse.y);
        }
        if constexpr (!kSoftcap) {
          x = ptx::Exp2(x);
          y = ptx::Exp2(y);
        }
        if constexpr (kPartial) hidden.Hide(i, h, range, x, y);
        if constexpr (kMaskBytes > 0) {
          mask.Hide(i, h, 0, kHidden, x);
          mask.Hide(i, h, 1, kHidden, y);
        }
      }
    }
  }
  __device__ __forceinline__ void HidePartial(int rows, int i0, Scores& s) const {
    const HiddenPairs hidden(*this, i0);
#pragma unroll
    for (int i = 0; i < kTileQ / 8; ++i) {
      int4 range{};
      if constexpr (kRowRanges) range = LoadRanges(rows, i);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        hidden.Hide(i, h, range, s[4 * i + 2 * h], s[4 * i + 2 * h + 1]);
      }
    }
  }

  // dS = P (dP - delta), from P in f32: with the rounded P its error would be up to 1.2 times as
  // large. The rounded P and dS reuse the registers of P and dP. With kSumsDbias dS stays in f32,
  // in the registers of dP. With dropout, dropped elements of the rounded P are 0. With softcap, dS
  // is the gradient of the scores before the cap.
  __device__ __forceinline__ void ComputeDs(const ScoreOptions& options, int rows, const Scores& s,
                                            Scores& dp, Fragments& p_pairs,
                                            Fragments& ds_pairs) const {
    float bias[8] = {};
#pragma unroll
    for (int i = 0; i < kTileQ / 8; ++i) {
      const float2 delta = LoadRows(kShared.delta, rows, i);
      float2 lse{};
      if constexpr (kSoftcap) lse = LoadRows(kShared.lse, rows, i);
      if constexpr (kRereadsBias) {
        if (i % 2 == 0) BiasReader{base + kShared.score, WarpKey()}.Load(i / 2, bias);
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float x = s[4 * i + 2 * h];
        float y = s[4 * i + 2 * h + 1];
        float2 slope{1.0f, 1.0f};
        if constexpr (kSoftcap) {
          const int n = i % 2 * 4 + 2 * h;
          slope = {options.Slope(p.common, x, lse.x, 8 * i, 8 * h, bias[n]),
                   options.Slope(p.common, y, lse.y, 8 * i + 1, 8 * h, bias[n + 1])};
          x = ptx::Exp2(x);
          y = ptx::Exp2(y);
        }
        float2 factor{1 / kPScale, 1 / kPScale};
        if constexpr (kSignedP) {
          const float2 kept{options.Kept(x), options.Kept(y)};
          const float scale_of_kept = p.common.keep_scale / kPScale;
          x = fabsf(x);
          y = fabsf(y);
          factor = {kept.x * scale_of_kept, kept.y * scale_of_kept};
          p_pairs[2 * i + h] = ptx::Pack<kDtype>(x * kept.x, y * kept.y);
        } else if constexpr (kDropout) {
          const float scale_of_kept = p.common.keep_scale / kPScale;
          const bool drops_x = options.Drops(i, h, 0);
          const bool drops_y = options.Drops(i, h, 1);
          factor = {drops_x ? 0.0f : scale_of_kept, drops_y ? 0.0f : scale_of_kept};
          p_pairs[2 * i + h] = ptx::Pack<kDtype>(drops_x ? 0.0f : x, drops_y ? 0.0f : y);
        } else {
          p_pairs[2 * i + h] = ptx::Pack<kDtype>(x, y);
        }
        if constexpr (kSoftcap) {
          x *= slope.x;
          y *= slope.y;
        }
        const float ds_x = x * fmaf(dp[4 * i + 2 * h], factor.x, -delta.x);
        const float ds_y = y * fmaf(dp[4 * i + 2 * h + 1], factor.y, -delta.y);
        if constexpr (kSumsDbias) {
          dp[4 * i + 2 * h] = ds_x;
          dp[4 * i + 2 * h + 1] = ds_y;
        } else {
          ds_pairs[2 * i + h] = ptx::Pack<kDtype>(ds_x, ds_y);
        }
      }
    }
  }

  // Stores dS transposed, as [tile_q][tile_kv]: this warp's 16 keys of all queries. The caller must
  // then arrive at a barrier.
  __device__ __forceinline__ void StoreDs(int stage, const Fragments& pairs) const {
    const int row = lane % 8;
    const int matrix = lane / 8;
    const unsigned to = base + kShared.ds +
                        static_cast<unsigned>(stage * kDsBytes + warpgroup * kTileQ * 128 +
                                              (8 * (matrix / 2) + row) * 128 +
                                              ((2 * warp + matrix % 2) ^ row) * 16);
#pragma unroll
    for (int i = 0; i < kTileQ / 16; ++i) {
      ptx::StoreMatrixTransposed(to + i * 16 * 128, pairs[4 * i], pairs[4 * i + 1],
                                 pairs[4 * i + 2], pairs[4 * i + 3]);
    }
    ptx::FenceAsyncProxy();
    __syncwarp();
  }
};

}  // namespace sm90
