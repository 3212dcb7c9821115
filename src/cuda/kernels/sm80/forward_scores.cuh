// sm80/forward.cu: score modifiers, mask and visibility, applied to scores, and dropout, applied to
// P.
#pragma once
#include "sm80/forward_tile.cuh"

namespace sm80::forward {

// Dropout bytes of 16 kN keys, in blocks of 16 x 16.
template <int kN>
using TileBits = DropoutBits[kBlocksM][kN];

// Per-head constants and the warp's tiles of bias and mask.
struct ScoreInputs {
  ScoreParams params;
  Dropout dropout;
  PhiloxRow dropout_row;
  unsigned bias_tile;
  unsigned mask_tile;
  float first_diagonal;  // ALiBi: the warp's first query + diag

  __device__ __forceinline__ ScoreInputs(const Arguments& a, const Sequence& seq, int head, int q0,
                                         int warp, unsigned base) {
    params = ScoreParamsOf(a, seq.idx, head);
    bias_tile = base + kShared.bias + static_cast<unsigned>(warp * kRows * kTileKv * kBiasBytes);
    mask_tile = base + kShared.mask + static_cast<unsigned>(warp * kRows * kTileKv);
    first_diagonal = static_cast<float>(q0 + warp * kRows + seq.diag);
    if constexpr (kHasDropout) dropout = DropoutOf(a, seq.idx, head);
    if constexpr (kPermutesRows) {
      const int row = q0 + warp * kRows + RowOf(0, 0);
      dropout_row = PhiloxRowOf(dropout, dropout.row + static_cast<unsigned>(row));
    }
  }

  // Loads bias and mask of queries from i and keys from j. All lanes of the warp must have read the
  // previous tiles. `enabled` is uniform in the warp; if false, an empty group is committed, so
  // that the number of groups does not depend on it.
  __device__ __forceinline__ void Load(const Arguments& a, const Sequence& seq, int head, int i,
                                       int j, bool enabled) const {
    if constexpr (kHasBias || kHasMask) {
      if (enabled) {
        if constexpr (kHasBias) {
          BiasTile::Load(bias_tile, a.bias, ScoreAddress(a.bias, BiasEntry(a, seq.idx), head, i, j),
                         seq.len_q - i, seq.len_kv - j);
        }
        if constexpr (kHasMask) {
          MaskTile::Load(mask_tile, a.mask, ScoreAddress(a.mask, MaskEntry(a, seq.idx), head, i, j),
                         seq.len_q - i, seq.len_kv - j);
        }
      }
      ptx::CopyCommit();
    }
  }
};

// Applies softcap, ALiBi and bias: turns raw products of keys from j0 + 8 n0 into scores in units
// of log2.
template <bool in_series, int kN>
__device__ __forceinline__ void ApplyScoreMods(const Arguments& a, const ScoreInputs& inputs,
                                               int j0, int n0, float (&s)[kBlocksM][kN][4]) {
#pragma unroll
  for (int m = 0; m < kBlocksM; ++m)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float from = inputs.first_diagonal + static_cast<float>(RowOf(m, r) - j0 - ColumnOf(0));
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        float2 bias{};
        if constexpr (kHasBias) {
          bias =
              BiasTile::Floats<config::bias_type>(inputs.bias_tile, RowOf(m, r), ColumnOf(n0 + n));
        }
        float slope;
        float* pair = s[m][n] + 2 * r;
        const int at = 8 * (n0 + n);
        pair[0] = ModifyScore<in_series>(a, inputs.params, pair[0], from - at, bias.x, 0.0f, slope);
        pair[1] =
            ModifyScore<in_series>(a, inputs.params, pair[1], from - (at + 1), bias.y, 0.0f, slope);
      }
    }
}

// Sets masked scores to -inf, for keys from j0 + 8 n0.
template <int kN>
__device__ __forceinline__ void HideByMask(unsigned mask_tile, int n0,
                                           float (&s)[kBlocksM][kN][4]) {
#pragma unroll
  for (int m = 0; m < kBlocksM; ++m)
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        const unsigned bytes = MaskTile::Bytes(mask_tile, RowOf(m, r), ColumnOf(n0 + n));
        if ((bytes & 0xff) == 0) s[m][n][2 * r] = -kInfinity;
        if ((bytes & 0xff00) == 0) s[m][n][2 * r + 1] = -kInfinity;
      }
}

// Sets scores outside of each row's key range to -inf. Only partial tiles need it.
__device__ __forceinline__ void HideByRange(const KeyRange* ranges, int j0, Scores& s) {
#pragma unroll
  for (int m = 0; m < kBlocksM; ++m)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const KeyRange keys = ranges[RowOf(m, r)];
      const unsigned width = static_cast<unsigned>(keys.end - keys.begin);
      const int from = j0 + ColumnOf(0) - keys.begin;
#pragma unroll
      for (int n = 0; n < kBlocksN; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          if (static_cast<unsigned>(from + 8 * n + e) >= width) s[m][n][2 * r + e] = -kInfinity;
        }
    }
}

// Generates the dropout bytes of queries from i0 and keys from j.
template <int kN>
__device__ __forceinline__ void GenerateTileBits(const ScoreInputs& inputs, int i0, int j,
                                                 TileBits<kN>& bits) {
  if constexpr (kPermutesRows) {
#pragma unroll
    for (int k = 0; k < kN; ++k) {
      GenerateRowPairs(inputs.dropout, inputs.dropout_row, i0, j + 16 * k, RowOf(0, 0), bits[0][k],
                       bits[1][k]);
    }
  } else {
    static_assert(kN % 2 == 0);
#pragma unroll
    for (int m = 0; m < kBlocksM; ++m)
#pragma unroll
      for (int k = 0; k < kN; k += 2) {
        GenerateBits(inputs.dropout, i0 + 16 * m, j + 16 * k, bits[m][k], bits[m][k + 1]);
      }
  }
}

// f32: PackP() for accumulators n0 and following; splits P into the parts of its fragments.
template <int kN>
__device__ __forceinline__ void PackP32(const float (&s)[kBlocksM][kN][4], const Dropout& dropout,
                                        const TileBits<kN / 2>& bits, int n0, PackedP& p) {
#pragma unroll
  for (int m = 0; m < kBlocksM; ++m)
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      float c[4]{s[m][n][0], s[m][n][1], s[m][n][2], s[m][n][3]};
      if constexpr (kHasDropout) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          c[e] *= KeepFactor(KeepFactors<false>(dropout, bits[m][n / 2], n % 2, e / 2), e % 2);
        }
      }
      SplitFragment(c, &p[m][(n0 + n) * kParts]);
    }
}

// Packs P into A fragments k0 and following: applies dropout and rounds. The epilogue multiplies by
// the factor of kept elements, once.
template <int kN>
__device__ __forceinline__ void PackP(const float (&s)[kBlocksM][kN][4], const Dropout& dropout,
                                      const TileBits<kN / 2>& bits, int k0, PackedP& p) {
  if constexpr (kF32) {
    PackP32(s, dropout, bits, 2 * k0, p);
  } else {
#pragma unroll
    for (int m = 0; m < kBlocksM; ++m)
#pragma unroll
      for (int k = 0; k < kN / 2; ++k)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float(&c)[4] = s[m][2 * k + e / 2];
          unsigned pair = ptx::Pack<kDtype>(c[e % 2 * 2], c[e % 2 * 2 + 1]);
          if constexpr (kHasDropout) {
            pair =
                ApplyDropout<kDtype>(pair, KeepFactors<false>(dropout, bits[m][k], e / 2, e % 2));
          }
          p[m][k0 + k][e] = pair;
        }
  }
}

// Computes the scores of a tile (QK^T, score modifiers, mask) and its dropout bytes. Key ranges are
// not applied.
__device__ __forceinline__ void ComputeScores(const Arguments& a, const ScoreInputs& inputs,
                                              const QFragments& q, unsigned q_tile, unsigned k_tile,
                                              int i0, int j0, TileBits<kTileKv / 16>& bits,
                                              Scores& s) {
  if constexpr (kHasDropout) GenerateTileBits(inputs, i0, j0, bits);
  MultiplyQK(q, q_tile, k_tile, 0, s);
  if constexpr (kHasScoreMod) {
    if (CapSeriesHolds(a, s)) {
      ApplyScoreMods<true>(a, inputs, j0, 0, s);
    } else {
      ApplyScoreMods<false>(a, inputs, j0, 0, s);
    }
  }
  if constexpr (kHasMask) HideByMask(inputs.mask_tile, 0, s);
}

}  // namespace sm80::forward
