// Online softmax of a warpgroup's rows with lazy rescaling.
//
// A thread holds kTileKv / 4 scores of each of two rows (h = 0: lane / 4, h = 1: 8 rows below);
// four lanes share a row. The first tile uses its exact max. Later tiles are exponentiated against
// the running max without computing their own: the sums of P, which are computed anyway, show
// whether the max has risen too far. Only then is the max updated, from P itself, and P, the sums
// and O are rescaled. If P has overflowed, the caller must recompute the scores (Renew()).
//
// P is 2^kPExponent times the exponential against the true max: a factor of 1, or of 32 for f8 with
// its small range. `max` is the exponent that P is relative to, so the sums contain the factor, and
// lse does not.
//
// Bounds: no group of 8 elements of P sums up to more than kRescaleThreshold, so P <= 8 (f8: P <=
// 256; e4m3 ends at 448). Rounding: with a stale max the largest P is not exactly 1, which raises
// the error of o most where one key has nearly all the weight. So a group's sum may not exceed
// twice the sum of the row so far either: a key whose P is inexact has at most 2/3 of the weight
// when it arrives. In simulations with 1024 keys and Q of standard deviation 1 to 16, the rms error
// of o in bf16 grows by a factor of at most 1.07 (docs/kernels/sm90_forward.md).
#pragma once
#include "ptx/math.cuh"
#include "shared/score.cuh"
#include "sm90/forward_config.cuh"

namespace sm90 {

inline constexpr float kPExponent = kF8 ? 5.0f : 0.0f;
inline constexpr float kLargestP = kF8 ? 32.0f : 1.0f;  // the largest P when the max is exact
inline constexpr float kRescaleThreshold = 8.0f * kLargestP;
// A new P may be this many times the sum of the row's P so far.
inline constexpr float kMostGrowth = 2.0f;
// The max of a row that has seen no key: finite, so that exp2(-inf - max) is 0.
inline constexpr float kNoMax = -1.0e30f;
// If P exceeds this, it cannot be rescaled, because the factor would be flushed to 0.
inline constexpr float kOverflow = 0x1p100f;

using Scores = float[kTileKv / 2];
using Output = float[kDimVo / 2];
// kAccumulateTiles: O without the latest tiles of keys, which the tensor cores still accumulate.
using Sums = float[kAccumulateTiles > 0 ? kDimVo / 2 : 1];

struct OnlineSoftmax {
  float max[2];            // in units of log2
  float sum[2];            // of this lane's columns
  float tile_sum[2];       // the latest tile's part of `sum`, not added yet
  float largest_group[2];  // the largest sum of a group of 8 in the latest tile

  // Initializes rows that see no key.
  __device__ __forceinline__ void Clear() {
    max[0] = max[1] = kNoMax;
    sum[0] = sum[1] = 0.0f;
  }

  // The max over the four lanes of a row.
  __device__ __forceinline__ static float ReduceRow(float x) {
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
  }

  __device__ __forceinline__ static void RowMax(const Scores& s, float (&top)[2]) {
    top[0] = s[0];
    top[1] = s[2];
#pragma unroll
    for (int i = 0; i < kTileKv / 2; ++i) top[i / 2 % 2] = fmaxf(top[i / 2 % 2], s[i]);
    top[0] = ReduceRow(top[0]);
    top[1] = ReduceRow(top[1]);
  }

  // Turns s into P relative to the current max. s * unit is in units of log2; `relative` scores are
  // already in these units, with the max subtracted. Sums are computed in groups of at most 8: the
  // largest group sum stands for the largest P, at an eighth of the cost.
  template <bool relative = false>
  __device__ __forceinline__ void Update(float unit, Scores& s) {
#pragma unroll
    for (int i = 0; i < kTileKv / 2; ++i) {
      s[i] = ptx::Exp2(relative ? s[i] : fmaf(s[i], unit, -max[i / 2 % 2]));
    }
#pragma unroll
    for (int n = 0; n < kTileKv / 2; n += 16) {
      float group[2] = {s[n] + s[n + 1], s[n + 2] + s[n + 3]};
#pragma unroll
      for (int i = n + 4; i < n + 16 && i < kTileKv / 2; ++i) group[i / 2 % 2] += s[i];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        largest_group[h] = n == 0 ? group[h] : fmaxf(largest_group[h], group[h]);
        tile_sum[h] = n == 0 ? group[h] : tile_sum[h] + group[h];
      }
    }
  }

  // The largest P that does not require a new max. This lane's part of the row's sum stands for the
  // sum, which is at least as large.
  __device__ __forceinline__ float Threshold(int h) const {
    return fminf(fmaxf(kMostGrowth * sum[h], kLargestP), kRescaleThreshold);
  }
  // Whether the max need not be updated. NaN: false. The same for all lanes of a warp.
  __device__ __forceinline__ bool WithinThreshold() const {
    return __all_sync(~0u, largest_group[0] <= Threshold(0) && largest_group[1] <= Threshold(1) &&
                               tile_sum[0] + tile_sum[1] < kOverflow) != 0;
  }
  __device__ __forceinline__ void AddTile() {
    sum[0] += tile_sum[0];
    sum[1] += tile_sum[1];
  }

  // Update() for the first tile: uses its exact max.
  __device__ __forceinline__ void Start(float unit, Scores& s) {
    float top[2];
    RowMax(s, top);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      max[h] = top[h] == -shared::kInfinity ? kNoMax : top[h] * unit - kPExponent;
    }
    Update(unit, s);
    sum[0] = tile_sum[0];
    sum[1] = tile_sum[1];
  }

  // Replaces the max, and rescales the sums and O to it.
  __device__ __forceinline__ void Rescale(const float (&next)[2], Output& o, Sums& sums,
                                          float (&alpha)[2]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      alpha[h] = ptx::Exp2(max[h] - next[h]);
      max[h] = next[h];
      sum[h] *= alpha[h];
    }
#pragma unroll
    for (int i = 0; i < kDimVo / 2; ++i) o[i] *= alpha[i / 2 % 2];
    if constexpr (kAccumulateTiles > 0) {
#pragma unroll
      for (int i = 0; i < kDimVo / 2; ++i) sums[i] *= alpha[i / 2 % 2];
    }
  }

  // Updates the max from P and rescales. Returns false and changes nothing if P has overflowed or
  // is NaN. The result is warp-uniform.
  __device__ __forceinline__ bool Renew(Scores& s, Output& o, Sums& sums) {
    if (__all_sync(~0u, tile_sum[0] + tile_sum[1] < kOverflow) == 0) return false;
    float top[2];
    RowMax(s, top);
    float next[2];
    float alpha[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      next[h] = top[h] > kLargestP ? max[h] + (ptx::Log2(top[h]) - kPExponent) : max[h];
    }
    Rescale(next, o, sums, alpha);
#pragma unroll
    for (int i = 0; i < kTileKv / 2; ++i) s[i] *= alpha[i / 2 % 2];
    tile_sum[0] *= alpha[0];
    tile_sum[1] *= alpha[1];
    return true;
  }

  // Updates the max to the exact max of the scores, rescales, and computes P.
  __device__ __forceinline__ void UpdateWithMax(float unit, Scores& s, Output& o, Sums& sums) {
    float top[2];
    RowMax(s, top);
    float next[2];
    float alpha[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) next[h] = fmaxf(max[h], top[h] * unit - kPExponent);
    Rescale(next, o, sums, alpha);
    Update(unit, s);
  }

  // Called before Update() where scores cannot be recomputed. If a P of the warp would exceed its
  // threshold, updates the max to the exact max of the scores and returns true; the caller must
  // then multiply O by `alpha`. The result is warp-uniform.
  __device__ __forceinline__ bool Raise(float unit, const Scores& s, float (&alpha)[2]) {
    float top[2];
    RowMax(s, top);
    top[0] *= unit;
    top[1] *= unit;
    if (__any_sync(~0u, top[0] > max[0] + ptx::Log2(Threshold(0)) ||
                            top[1] > max[1] + ptx::Log2(Threshold(1))) == 0) {
      return false;
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float next = fmaxf(max[h], top[h]);
      alpha[h] = ptx::Exp2(max[h] - next);
      max[h] = next;
      sum[h] *= alpha[h];
    }
    return true;
  }

  // Called after the last tile: sums over the lanes of a row and folds in the sink. `factor`:
  // factor of O. `sink`: in units of log2, -inf if there is none.
  __device__ __forceinline__ void Finalize(int h, float sink, float& factor, float& lse) const {
    float total = sum[h];
    total += __shfl_xor_sync(~0u, total, 1);
    total += __shfl_xor_sync(~0u, total, 2);
    float top = total == 0.0f ? -shared::kInfinity : max[h];
    factor = 1.0f;
    const float with_sink = fmaxf(top, sink);
    if (sink > -shared::kInfinity) {
      factor = ptx::Exp2(top - with_sink);
      total = total * factor + ptx::Exp2(sink - with_sink);
      top = with_sink;
    }
    // Not "total > 0", which would turn NaN into 0.
    factor = total == 0.0f ? 0.0f : factor * ptx::Reciprocal(total);
    lse = total == 0.0f ? -shared::kInfinity : top * shared::kLn2 + logf(total);
  }
};

}  // namespace sm90
