// sm80/bias_gradient.cu: dS of a warp's part of a tile, from S and dP.
#pragma once
#include "sm80/bias_gradient_visits.cuh"

namespace sm80::bias_gradient {

// Applies score modifiers and mask: turns raw products s into log2(P).
template <bool in_series>
__device__ __forceinline__ void ApplyScoreMods(const Arguments& a, const Visit& visit,
                                               unsigned bias_tile, unsigned mask_tile, Scores& s) {
  const ScoreParams scale = ScoreParamsOf(a, visit.seq_idx, visit.head);
  const float first = static_cast<float>(visit.i0 + SequenceOf(a, visit.seq_idx).diag - visit.j0);
#pragma unroll
  for (int m = 0; m < kBlocksM; ++m)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = RowOf(m, r);
      const float lse = FromRow(visit.lse, row);
      const float from = first + static_cast<float>(row - ColumnOf(0));
#pragma unroll
      for (int n = 0; n < kBlocksN; ++n) {
        const float2 bias = BiasTile::Floats<config::bias_type>(bias_tile, row, ColumnOf(n));
        unsigned mask = 0x0101;
        if constexpr (config::mask != 0) mask = MaskTile::Bytes(mask_tile, row, ColumnOf(n));
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& element = s[m][n][2 * r + e];
          float slope;
          element = ModifyScore<in_series>(a, scale, element, from - (8 * n + e),
                                           e == 0 ? bias.x : bias.y, -lse, slope);
          if ((mask & (e == 0 ? 0xffu : 0xff00u)) == 0) element = -kInfinity;
        }
      }
    }
}

// Sets scores outside of each row's key range to -inf. Only partial tiles need it.
__device__ __forceinline__ void HideByRange(const Visit& visit, Scores& s) {
#pragma unroll
  for (int m = 0; m < kBlocksM; ++m)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const KeyRange keys = FromRow(visit.keys, RowOf(m, r));
      const unsigned width = static_cast<unsigned>(keys.end - keys.begin);
      const int from = visit.j0 + ColumnOf(0) - keys.begin;
#pragma unroll
      for (int n = 0; n < kBlocksN; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          if (static_cast<unsigned>(from + 8 * n + e) >= width) s[m][n][2 * r + e] = -kInfinity;
        }
    }
}

// Turns raw products s into log2(P).
__device__ __forceinline__ void ComputeLogP(const Arguments& a, const Visit& visit,
                                            unsigned bias_tile, unsigned mask_tile, Scores& s) {
  if (CapSeriesHolds(a, s)) {
    ApplyScoreMods<true>(a, visit, bias_tile, mask_tile, s);
  } else {
    ApplyScoreMods<false>(a, visit, bias_tile, mask_tile, s);
  }
  if (visit.partial) HideByRange(visit, s);
}

// Adds dS of the tile to `sums`. s: log2(P). dp: raw products.
__device__ __forceinline__ void AddGradient(const Arguments& a, const Visit& visit, const Scores& s,
                                            const Scores& dp, Scores& sums) {
  Dropout dropout{};
  if constexpr (config::dropout != 0) dropout = DropoutOf(a, visit.seq_idx, visit.head);
#pragma unroll
  for (int m = 0; m < kBlocksM; ++m) {
    const float deltas[2] = {FromRow(visit.delta, RowOf(m, 0)), FromRow(visit.delta, RowOf(m, 1))};
#pragma unroll
    for (int n = 0; n < kBlocksN; n += 4) {
      DropoutBits bits[2];
      if constexpr (config::dropout != 0) {
        GenerateBits(dropout, visit.i0 + 16 * m, visit.j0 + 8 * n, bits[0], bits[1]);
      }
#pragma unroll
      for (int c = 0; c < 4; ++c)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float delta = deltas[e / 2];
          float gradient = dp[m][n + c][e];
          if constexpr (config::dropout != 0) {
            const unsigned keeps = KeepFactors<false>(dropout, bits[c / 2], c % 2, e / 2);
            gradient = fmaf(gradient, KeepFactor(keeps, e % 2) * a.keep_scale, -delta);
          } else {
            gradient -= delta;
          }
          sums[m][n + c][e] = fmaf(ptx::Exp2(s[m][n + c][e]), gradient, sums[m][n + c][e]);
        }
    }
  }
}

}  // namespace sm80::bias_gradient
