// Online softmax of a warpgroup's rows with a lazily renewed max.
//
// A thread holds kTileKv / 4 scores of each of two rows (h = 0: lane / 4, h = 1: 8 rows below);
// four lanes share a row. The first tile takes its exact max. Later tiles are exponentiated against
// the max known so far without looking at their own: the sums of P, which are computed anyway, tell
// whether it has risen too far. Only then is the max renewed, from P itself, and P, the sums and O
// are rescaled. If P has overflowed, the caller has to compute the scores once more (Renew()).
//
// P is 2^kPExponent times the exponential against the max: 1, and 32 for f8, whose range is small.
// `max` is the exponent that P is relative to, so sums carry the factor, and lse does not.
//
// Bounds: no group of 8 elements of P sums up to more than kRescaleThreshold, so P <= 8 (f8: 256,
// e4m3 ends at 448). Rounding:
// with a stale max the largest P is not exactly 1, which raises the error of o. Simulated with 1024
// to 4096 keys and Q of standard deviation 1 to 8, the rms error of o in bf16 grows by at most 1.10
// (docs/kernels/sm90_forward.md).
#pragma once
#include "ptx/math.cuh"
#include "shared/score.cuh"
#include "sm90/forward_config.cuh"

namespace sm90 {

inline constexpr float kPExponent = kF8 ? 5.0f : 0.0f;
inline constexpr float kLargestP = kF8 ? 32.0f : 1.0f;  // where the max is exact
inline constexpr float kRescaleThreshold = 8.0f * kLargestP;
// The max of a row that has seen no key: finite, so that exp2(-inf - max) is 0.
inline constexpr float kNoMax = -1.0e30f;
// Raise(): the max may lag behind by this much, so that P <= 8.
inline constexpr float kMaxRise = 3.0f;
// Above this P cannot be rescaled: the factor would be flushed to 0.
inline constexpr float kOverflow = 0x1p100f;

using Scores = float[kTileKv / 2];
using Output = float[kDimVo / 2];
// O but for the latest tiles of keys, if the tensor cores sum up few (kAccumulateTiles).
using Sums = float[kAccumulateTiles > 0 ? kDimVo / 2 : 1];

struct OnlineSoftmax {
  float max[2];         // in units of log2
  float sum[2];         // of this lane's columns
  float tile_sum[2];    // the latest tile's part of `sum`, not added yet
  float largest_group;  // the largest sum of a group of 8 in the latest tile

  // Rows that see no key.
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

  // s becomes P against the current max. s * unit is in units of log2; `relative` scores are in
  // these units, and the max is already subtracted. Sums are taken in groups of at most 8: the
  // largest group stands for the largest P at an eighth of its cost.
  template <bool relative = false>
  __device__ __forceinline__ void Update(float unit, Scores& s) {
#pragma unroll
    for (int i = 0; i < kTileKv / 2; ++i) {
      s[i] = ptx::Exp2(relative ? s[i] : fmaf(s[i], unit, -max[i / 2 % 2]));
    }
    largest_group = 0.0f;
#pragma unroll
    for (int n = 0; n < kTileKv / 2; n += 16) {
      float group[2] = {s[n] + s[n + 1], s[n + 2] + s[n + 3]};
#pragma unroll
      for (int i = n + 4; i < n + 16 && i < kTileKv / 2; ++i) group[i / 2 % 2] += s[i];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        largest_group = fmaxf(largest_group, group[h]);
        tile_sum[h] = n == 0 ? group[h] : tile_sum[h] + group[h];
      }
    }
  }
  // Whether the max need not be renewed; NaN says no. The same for all lanes of a warp.
  __device__ __forceinline__ bool WithinThreshold() const {
    return __all_sync(~0u, largest_group <= kRescaleThreshold &&
                               tile_sum[0] + tile_sum[1] < kOverflow) != 0;
  }
  __device__ __forceinline__ void AddTile() {
    sum[0] += tile_sum[0];
    sum[1] += tile_sum[1];
  }

  // The first tile.
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

  // Replaces the max, and brings the sums and O down to it.
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

  // Renews the max from P and rescales. False, and nothing has changed, if P has overflowed or is
  // NaN. Warp-uniform.
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

  // Takes the exact max of scores and rescales.
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

  // Before Update(), where scores cannot be computed again: takes the exact max of scores if one of
  // the warp's rows has risen by more than kMaxRise. True if so; O times `alpha` is then left to
  // the caller. Warp-uniform.
  __device__ __forceinline__ bool Raise(float unit, const Scores& s, float (&alpha)[2]) {
    float top[2];
    RowMax(s, top);
    top[0] *= unit;
    top[1] *= unit;
    if (__any_sync(~0u, top[0] > max[0] + kMaxRise || top[1] > max[1] + kMaxRise) == 0) {
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

  // After the last tile: adds the lanes and the sink up. `factor` is what O is multiplied by.
  // `sink`: in units of log2, -inf if there is none.
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
