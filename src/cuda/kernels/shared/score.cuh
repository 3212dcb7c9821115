// Score modifiers (softcap, ALiBi, bias): convert raw products to scores in units of log2
// (docs/semantics.md, "Forward"), so that exp(score) is one ex2. The caller passes the query and
// key of an element, so S and its transpose share this code.
#pragma once
#include "config.cuh"
#include "ptx/math.cuh"
#include "shared/arguments.cuh"
#include "shared/constants.cuh"

namespace shared {

// Without a score modifier a score is the raw product times the scale.
inline constexpr bool kHasScoreMod =
    config::softcap != 0 || config::alibi != 0 || config::bias_type != config::none;

// tanh with a relative error of 4e-7: x P(x^2) / Q(x^2) on [-9, 9], fitted by iterated least
// squares (2e-8 before rounding). Alternatives:
//   tanh.approx  error 5e-4. With a cap of 30 this is 4 times the rounding error of bf16.
//   by ex2       error 3e-7 of the cap, which is visible in lse (f32).
//   tanhf        error 2 ulp, twice the time. Used in f32, where 4e-7 of the cap would be visible
//                in o.
__device__ __forceinline__ float Tanh(float x) {
  if constexpr (config::dtype == config::f32) return tanhf(x);
  x = ptx::MinKeepNan(ptx::MaxKeepNan(x, -9.0f), 9.0f);
  const float u = x * x;
  float p = fmaf(u, 1.33552061263952e-08f, 2.0609526963494713e-05f);
  p = fmaf(u, p, 0.0034956173259786728f);
  p = fmaf(u, p, 0.13381051006831166f);
  p = fmaf(u, p, 0.9999999796766748f);
  float q = fmaf(u, 7.776796628801425e-07f, 0.0003285681034895939f);
  q = fmaf(u, q, 0.02587709562017288f);
  q = fmaf(u, q, 0.4671436667621394f);
  q = fmaf(u, q, 1.0f);
  return x * p * ptx::Reciprocal(q);
}

// Factors of one head's scores.
struct ScoreParams {
  float raw;    // scale log2(e), signed
  float cap;    // softcap log2(e)
  float slope;  // ALiBi slope log2(e)
};

__device__ __forceinline__ ScoreParams ScoreParamsOf(const attn::device::Arguments& a, int b,
                                                     int head) {
  ScoreParams scale{a.scale * kLog2E, a.softcap * kLog2E, 0.0f};
  if constexpr (config::alibi != 0) {
    const char* slopes = reinterpret_cast<const char*>(a.slopes);
    scale.slope = kLog2E * *reinterpret_cast<const float*>(slopes + b * a.slopes_stride_batch +
                                                           head * a.slopes_stride_head);
  }
  return scale;
}

// Softcap: whether the series (host/arguments.cpp) is valid for all raw products of this thread or
// of the warp. It almost always is; otherwise scores use Tanh(). NaN stays NaN in the series too.
template <int kM, int kN>
__device__ __forceinline__ bool CapSeriesHoldsInThread(const attn::device::Arguments& a,
                                                       const float (&s)[kM][kN][4]) {
  float largest = 0.0f;
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int n = 0; n < kN; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) largest = fmaxf(largest, fabsf(s[m][n][e]));
  return !(largest > a.cap_reach);
}
template <int kM, int kN>
__device__ __forceinline__ bool CapSeriesHolds(const attn::device::Arguments& a,
                                               const float (&s)[kM][kN][4]) {
  if constexpr (config::softcap == 0) return false;
  return __all_sync(~0u, CapSeriesHoldsInThread(a, s)) != 0;
}

// With kHasScoreMod: returns the modified score + `addend`. `distance`: i + diag - j. `bias`: in
// natural units. Sets `slope` to the derivative of softcap. in_series: CapSeriesHolds().
template <bool in_series>
__device__ __forceinline__ float ModifyScore(const attn::device::Arguments& a,
                                             const ScoreParams& scale, float raw, float distance,
                                             float bias, float addend, float& slope) {
  float score;
  if constexpr (config::softcap != 0 && in_series) {
    const float u = raw * raw;
    float series = fmaf(a.cap_series[4], u, a.cap_series[3]);
    series = fmaf(series, u, a.cap_series[2]);
    series = fmaf(series, u, a.cap_series[1]);
    series = fmaf(series, u, a.cap_series[0]);
    score = fmaf(raw, series, addend);
    const float ratio = raw * series * a.cap_unit;
    slope = fmaf(-ratio, ratio, 1.0f);
  } else if constexpr (config::softcap != 0) {
    const float ratio = Tanh(raw * a.inverse_cap);
    score = fmaf(scale.cap, ratio, addend);
    slope = fmaf(-ratio, ratio, 1.0f);
  } else {
    score = fmaf(raw, scale.raw, addend);
  }
  // ALiBi and bias are added last. Adding them before the product slowed the forward with a bias by
  // 3 % (dim 64) to 6 % (dim 128).
  if constexpr (config::alibi != 0) score = fmaf(-scale.slope, fabsf(distance), score);
  if constexpr (config::bias_type != config::none) score = fmaf(bias, kLog2E, score);
  return score;
}

}  // namespace shared
