// sm80/forward.cu: the online softmax (Milakov and Gimelshein 2018), with lazy rescaling.
#pragma once
#include "sm80/forward_scores.cuh"

namespace sm80::forward {

// How far scores may exceed the max that a row's P is relative to, in units of log2.
constexpr float kRescaleThreshold = kLazyRescale ? 8.0f : 0.0f;
// Limit of a lane's sum of P over a tile that is updated lazily. A larger sum proves that an
// element exceeds kRescaleThreshold, so the max is updated, and the next tile can be lazy again.
// Below the limit, P is at most 2^13, where f16 and f32 represent P and its products with V as well
// as below 1.
constexpr float kMaxLazySum = 260.0f * (kTileKv / 4);
// Accumulators that a lazy update computes at once. If rows are permuted: 16 keys, those of one
// Philox call, so that the integer unit, exponentials and products alternate. Otherwise all of
// them, for lack of registers.
constexpr int kLazyBlocksN = kPermutesRows ? 2 : kBlocksN;

// Running max and sum of the warp's rows. With kHasScoreMod the max is in units of log2. Otherwise
// it is a raw product, and `unit` converts it.
struct OnlineSoftmax {
  float max[kBlocksM][2];  // P is relative to it: the true max, or up to kRescaleThreshold less
  float sum[kBlocksM][2];  // this lane's part of the row's sum
  float unit;
  bool all_rows_seen = false;  // every row has seen a key

  __device__ __forceinline__ explicit OnlineSoftmax(const Arguments& a)
      : unit(kHasScoreMod ? 1.0f : a.scale_log2) {
#pragma unroll
    for (int m = 0; m < kBlocksM; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        max[m][r] = -kInfinity;
        sum[m][r] = 0.0f;
      }
  }

  // Converts a max to units of log2. __fmul_rn rounds the product: if it were fused into the
  // difference, an unchanged max would rescale by 2^(rounding error) in every tile instead of by 1.
  // With kHasScoreMod `unit` is 1, but leaving the product out makes ALiBi at dim 128 spill (288
  // instead of 312 TFLOP/s).
  __device__ __forceinline__ float InLog2(float value) const {
    return kHasScoreMod && kLazyRescale ? value : __fmul_rn(value, unit);
  }

  // Replaces s by P relative to the new max; rescales o and the sums to that max.
  __device__ __forceinline__ void Update(Scores& s, Output& o) {
    bool seen = true;
#pragma unroll
    for (int m = 0; m < kBlocksM; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float old_max = max[m][r];
        float new_max = old_max;
#pragma unroll
        for (int n = 0; n < kBlocksN; ++n)
          new_max = fmaxf(new_max, fmaxf(s[m][n][2 * r], s[m][n][2 * r + 1]));
        new_max = fmaxf(new_max, __shfl_xor_sync(~0u, new_max, 1));
        new_max = fmaxf(new_max, __shfl_xor_sync(~0u, new_max, 2));
        if (kLazyRescale && InLog2(new_max) - InLog2(old_max) <= kRescaleThreshold) {
          new_max = old_max;
        }
        max[m][r] = new_max;
        seen = seen && new_max > -kInfinity;
        // A row that has seen no key keeps exp2(-inf - 0) = 0.
        const float reference = new_max == -kInfinity ? 0.0f : InLog2(new_max);
        const float rescale = ptx::Exp2(InLog2(old_max) - reference);
        float row_sum = sum[m][r] * rescale;
#pragma unroll
        for (int n = 0; n < kBlocksN; ++n) {
          float* pair = s[m][n] + 2 * r;
          pair[0] = ptx::Exp2(fmaf(pair[0], unit, -reference));
          pair[1] = ptx::Exp2(fmaf(pair[1], unit, -reference));
          row_sum += pair[0] + pair[1];
        }
        sum[m][r] = row_sum;
#pragma unroll
        for (int d = 0; d < kBlocksD; ++d) {
          o[m][d][2 * r] *= rescale;
          o[m][d][2 * r + 1] *= rescale;
        }
      }
    all_rows_seen = kLazyRescale && __all_sync(~0u, seen);
  }

  // Computes P of a full tile relative to the running max, in chunks of keys, without updating the
  // max or rescaling o. Requires all_rows_seen. Returns false if scores exceed the max too far.
  // Then only p has changed, and the caller processes the tile with Update().
  __device__ __forceinline__ bool UpdateLazily(const Arguments& a, const ScoreInputs& inputs,
                                               const QFragments& q, unsigned q_tile,
                                               unsigned k_tile, int i0, int j0, PackedP& p) {
    float reference[kBlocksM][2];
    float tile_sum[kBlocksM][2]{};
#pragma unroll
    for (int m = 0; m < kBlocksM; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r) reference[m][r] = InLog2(max[m][r]);
    bool within = true;
#pragma unroll
    for (int n0 = 0; n0 < kBlocksN; n0 += kLazyBlocksN) {
      TileBits<kLazyBlocksN / 2> bits;
      if constexpr (kHasDropout) GenerateTileBits(inputs, i0, j0 + 8 * n0, bits);
      float s[kBlocksM][kLazyBlocksN][4];
      MultiplyQK(q, q_tile, k_tile, 8 * n0, s);
      if constexpr (config::softcap != 0) within = within && CapSeriesHoldsInThread(a, s);
      if constexpr (kHasScoreMod) ApplyScoreMods<true>(a, inputs, j0, n0, s);
      if constexpr (kHasMask) HideByMask(inputs.mask_tile, n0, s);
#pragma unroll
      for (int n = 0; n < kLazyBlocksN; ++n)
#pragma unroll
        for (int m = 0; m < kBlocksM; ++m)
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            float* pair = s[m][n] + 2 * r;
            pair[0] = ptx::Exp2(fmaf(pair[0], unit, -reference[m][r]));
            pair[1] = ptx::Exp2(fmaf(pair[1], unit, -reference[m][r]));
            tile_sum[m][r] += pair[0] + pair[1];
          }
      PackP(s, inputs.dropout, bits, n0 / 2, p);
    }
#pragma unroll
    for (int m = 0; m < kBlocksM; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r) within = within && tile_sum[m][r] < kMaxLazySum;
    if (!__all_sync(~0u, within)) return false;
#pragma unroll
    for (int m = 0; m < kBlocksM; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r) sum[m][r] += tile_sum[m][r];
    return true;
  }

  // Folds the sink into row (m, r). Computes the factor of o, 1 / sum, and lse = max + log(sum). A
  // row that has seen no key and has no sink gets 0 and -inf.
  __device__ __forceinline__ void Finalize(const Arguments& a, int head, int m, int r,
                                           float& factor, float& lse) {
    float& row_max = max[m][r];
    float& row_sum = sum[m][r];
    row_sum += __shfl_xor_sync(~0u, row_sum, 1);
    row_sum += __shfl_xor_sync(~0u, row_sum, 2);
    // With a scale of 0, `unit` is the smallest normal number, so that hidden scores stay -inf; the
    // max is then multiplied by 0 instead.
    if (row_max > -kInfinity) row_max *= a.scale == 0.0f && !kHasScoreMod ? 0.0f : unit;
    factor = 1.0f;
    if (a.sinks != nullptr) {
      const float sink =
          kLog2E * *reinterpret_cast<const float*>(reinterpret_cast<const char*>(a.sinks) +
                                                   head * a.sinks_stride);
      const float with_sink = fmaxf(row_max, sink);
      if (with_sink > -kInfinity) {
        factor = ptx::Exp2(row_max - with_sink);
        row_sum = row_sum * factor + ptx::Exp2(sink - with_sink);
        row_max = with_sink;
      }
    }
    // Not "sum > 0": a NaN sum must not count as empty.
    factor = row_sum == 0.0f ? 0.0f : factor / row_sum;
    lse = row_sum == 0.0f ? -kInfinity : row_max * kLn2 + logf(row_sum);
  }
};

}  // namespace sm80::forward
