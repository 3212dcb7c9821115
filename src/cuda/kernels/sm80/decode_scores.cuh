// sm80/decode.cu: scores of a tile, and the online softmax (Milakov and Gimelshein 2018) of a
// warp's 16 rows. The rows belong to different heads.
#pragma once
#include "shared/score_entries.cuh"
#include "sm80/decode_cache.cuh"
#include "sm80/decode_queries.cuh"

namespace sm80::decode {

// Inputs of the score modifiers and the mask for this lane's two rows.
struct ScoreInputs {
  ScoreParams params[2];
  long long diagonal[2];  // i + diag of the row's query i
  const char* bias[2];    // address of the row's first element
  const char* mask[2];
  float factor[2];  // kQuantized: factor of the products
  int len_kv;

  __device__ __forceinline__ ScoreInputs(const DecodeParams& p, const Block& block,
                                         const QueryUnits& units)
      : len_kv(block.seq.len_kv) {
    const Arguments& a = p.common;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if constexpr (kQuantized) {
        factor[r] = units.row_factor[r] * (kDescaleRows ? 1.0f : DescaleOf(p.descale_k, block));
        if constexpr (!kHasScoreMod) factor[r] *= a.scale * kLog2E;
      }
      params[r] = {a.scale * kLog2E, a.softcap * kLog2E, 0.0f};
      if constexpr (kOptions) {
        // Rows that do not exist use valid addresses: those of the tile's first row or of query 0.
        const int in_tile = 16 * WarpM() + LaneIdx() / 4 + 8 * r;
        Row row = RowOf(a, block, in_tile < block.num_rows ? in_tile : 0);
        if (row.i >= block.seq.len_q) row.i = 0;
        if (a.slopes != nullptr) params[r] = ScoreParamsOf(a, block.seq.idx, row.head);
        diagonal[r] = row.i + block.seq.diag;
        bias[r] = ScoreAddress(a.bias, BiasEntry(a, block.seq.idx), row.head, row.i, 0);
        mask[r] = ScoreAddress(a.mask, MaskEntry(a, block.seq.idx), row.head, row.i, 0);
      }
    }
  }
};

// This lane's elements of bias and mask for a tile. They are loaded before the product, which hides
// their latency.
struct ScoreTile {
  float bias[kOptions ? kBlocksN : 1][4]{};
  unsigned hidden[(kBlocksN + 7) / 8]{};  // bit 4 n + e

  __device__ __forceinline__ bool Hides(int n, int e) const {
    return (hidden[n / 8] >> (n % 8 * 4 + e) & 1u) != 0;
  }

  __device__ __forceinline__ ScoreTile(const Arguments& a, const ScoreInputs& inputs, int j0) {
    if constexpr (kOptions) {
      if (a.bias.base == nullptr && a.mask.base == nullptr) return;
#pragma unroll
      for (int n = 0; n < kBlocksN; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int j = j0 + 8 * n + LaneIdx() % 4 * 2 + e % 2;
          if (j >= inputs.len_kv) continue;
          if (a.bias.base != nullptr) {
            bias[n][e] = LoadElement(inputs.bias[e / 2] + j * a.bias.stride_kv, a.bias.type);
          }
          if (a.mask.base != nullptr && inputs.mask[e / 2][j * a.mask.stride_kv] == 0) {
            hidden[n / 8] |= 1u << (n % 8 * 4 + e);
          }
        }
    }
  }
};

template <bool in_series>
__device__ __forceinline__ void ApplyScoreMods(const Arguments& a, const ScoreInputs& inputs,
                                               const ScoreTile& tile, int j0, Scores& s) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const auto from = static_cast<float>(inputs.diagonal[r] - (j0 + LaneIdx() % 4 * 2));
#pragma unroll
    for (int n = 0; n < kBlocksN; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float slope;
        float& score = s[0][n][2 * r + e];
        score = ModifyScore<in_series>(a, inputs.params[r], score, from - (8 * n + e),
                                       tile.bias[n][2 * r + e], 0.0f, slope);
      }
  }
}

// Computes s = Q K^T, applies score modifiers, and sets masked scores to -inf. Key ranges and
// missing pages are applied by the caller. k_scales: factors of the tile's keys, with kDescaleRows.
__device__ __forceinline__ void ComputeScores(const Arguments& a, const ScoreInputs& inputs,
                                              const QFragments& q, unsigned base, unsigned k_tile,
                                              unsigned k_scales, int j0, Scores& s) {
  const ScoreTile tile(a, inputs, j0);
  const auto load = [&](int k, unsigned(&fragment)[1][4]) {
    LoadFragment(base, k, q, fragment[0]);
  };
  if constexpr (kQuantized) {
    MultiplyQuantizedK(load, k_tile, s);
#pragma unroll
    for (int n = 0; n < kBlocksN; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) s[0][n][e] *= inputs.factor[e / 2];
    if constexpr (kDescaleRows) {
      KeyFactors factors;
      LoadKeyFactors(k_scales, factors);
#pragma unroll
      for (int n = 0; n < kBlocksN; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) s[0][n][e] *= factors[n][e % 2];
    }
  } else {
    MultiplyTransposed<kDtype, kDim>(load, k_tile, 0, s);
  }
  if constexpr (kHasScoreMod) {
    if (CapSeriesHolds(a, s)) {
      ApplyScoreMods<true>(a, inputs, tile, j0, s);
    } else {
      ApplyScoreMods<false>(a, inputs, tile, j0, s);
    }
  }
  if (kOptions && a.mask.base != nullptr) {
#pragma unroll
    for (int n = 0; n < kBlocksN; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (tile.Hides(n, e)) s[0][n][e] = -kInfinity;
      }
  }
}

// Running max and sum of this lane's two rows. With kScaledScores the max is in units of log2.
// Otherwise it is a raw product, and `unit` converts it.
struct OnlineSoftmax {
  float max[2];
  float sum[2];  // this lane's part of the row's sum
  float unit;

  __device__ __forceinline__ explicit OnlineSoftmax(const Arguments& a)
      : max{-kInfinity, -kInfinity}, sum{0.0f, 0.0f}, unit(kScaledScores ? 1.0f : a.scale_log2) {}

  // Replaces s by P relative to the new max; rescales o and the sums to that max.
  __device__ __forceinline__ void Update(Scores& s, Output& o) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float new_max = max[r];
#pragma unroll
      for (int n = 0; n < kBlocksN; ++n)
        new_max = fmaxf(new_max, fmaxf(s[0][n][2 * r], s[0][n][2 * r + 1]));
      new_max = fmaxf(new_max, __shfl_xor_sync(~0u, new_max, 1));
      new_max = fmaxf(new_max, __shfl_xor_sync(~0u, new_max, 2));
      // A row that has seen no key keeps exp2(-inf - 0) = 0. __fmul_rn rounds the products (no
      // fma), so that an unchanged max rescales by exactly 1.
      const float reference = new_max == -kInfinity ? 0.0f : __fmul_rn(new_max, unit);
      const float rescale = ptx::Exp2(__fmul_rn(max[r], unit) - reference);
      max[r] = new_max;
      float row_sum = sum[r] * rescale;
#pragma unroll
      for (int n = 0; n < kBlocksN; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& value = s[0][n][2 * r + e];
          value = ptx::Exp2(fmaf(value, unit, -reference));
          row_sum += value;
        }
      sum[r] = row_sum;
#pragma unroll
      for (int d = 0; d < kBlocksD; ++d) {
        o[0][d][2 * r] *= rescale;
        o[0][d][2 * r + 1] *= rescale;
      }
    }
  }

  // Returns {max in units of log2, sum} of the complete row. With a scale of 0, `unit` is the
  // smallest normal number, so that hidden scores stay -inf; the max is then multiplied by 0
  // instead.
  __device__ __forceinline__ float2 Stats(const Arguments& a, int r) const {
    float total = sum[r];
    total += __shfl_xor_sync(~0u, total, 1);
    total += __shfl_xor_sync(~0u, total, 2);
    const float factor = a.scale == 0.0f && !kScaledScores ? 0.0f : unit;
    return {max[r] > -kInfinity ? max[r] * factor : max[r], total};
  }
};

// o += P V.
__device__ __forceinline__ void MultiplyPV(const Scores& s, unsigned v_tile, Output& o) {
#pragma unroll
  for (int k = 0; k < kTileKv / 16; ++k) {
    unsigned p[1][4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float(&c)[4] = s[0][2 * k + e / 2];
      p[0][e] = ptx::Pack<kMmaType>(c[e % 2 * 2], c[e % 2 * 2 + 1]);
    }
    if constexpr (kQuantized) {
      MultiplyQuantizedV(p[0], v_tile, 16 * k, o);
    } else {
      Multiply<kDtype>(p, FragmentLane<kDim>::RowsFirst(), v_tile, 16 * k, 0, o);
    }
  }
}

}  // namespace sm80::decode
