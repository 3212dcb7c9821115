// Effects of score options in the backward, element by element, for sm90/backward.cu and
// sm90/backward_wide.cu.
#pragma once
#include "shared/dropout.cuh"
#include "shared/score.cuh"
#include "shared/sequence.cuh"
#include "sm90/backward_common_config.cuh"

namespace sm90 {

using shared::kHasScoreMod;
inline constexpr bool kSoftcap = config::softcap != 0;
inline constexpr bool kAlibi = config::alibi != 0;
inline constexpr bool kDropout = config::dropout != 0;
// If true, the bias is read a second time, for the derivative of softcap.
inline constexpr bool kRereadsBias = kSoftcap && kBiasBytes > 0;

// The options of a step. Elements are addressed by query and key, relative to this thread's first.
struct ScoreTerms {
  shared::ScoreParams score;
  shared::Dropout dropout;
  float distance;  // ALiBi: from the diagonal of the first query to the first key

  // Query i and key j are this thread's first.
  __device__ __forceinline__ void Start(const shared::Arguments& a, const shared::Sequence& seq,
                                        int head, int i, int j) {
    if constexpr (kHasScoreMod) score = shared::ScoreParamsOf(a, seq.idx, head);
    if constexpr (kAlibi) distance = static_cast<float>(i + seq.diag - j);
    if constexpr (kDropout) dropout = shared::DropoutOf(a, seq.idx, head);
  }

  // Returns the score of a raw product, in units of log2, + `addend`. in_series: shared/score.cuh.
  template <bool in_series>
  __device__ __forceinline__ float Score(const shared::Arguments& a, float raw, int query, int key,
                                         float bias, float addend) const {
    float unused;
    return shared::ModifyScore<in_series>(a, score, raw, Distance(query, key), bias, addend,
                                          unused);
  }
  // Returns the derivative of softcap, from log2(P) and lse: their sum is the score. The result is
  // within [0, 1], also for hidden keys and rows without keys, where the sum is -inf or NaN.
  __device__ __forceinline__ float Slope(const shared::Arguments& a, float log2_p, float lse,
                                         int query, int key, float bias) const {
    float capped = log2_p + lse;
    if constexpr (kBiasBytes > 0) capped = fmaf(-shared::kLog2E, bias, capped);
    if constexpr (kAlibi) capped = fmaf(score.slope, fabsf(Distance(query, key)), capped);
    const float ratio = capped * a.cap_unit;
    return __saturatef(fmaf(-ratio, ratio, 1.0f));
  }
  // Softcap: whether the series is valid for all raw products of the warp; see shared/score.cuh.
  template <int n>
  __device__ __forceinline__ static bool InSeries(const shared::Arguments& a,
                                                  const float (&raw)[n]) {
    if constexpr (!kSoftcap) return false;
    float most = 0.0f;
#pragma unroll
    for (float x : raw) most = fmaxf(most, fabsf(x));
    return __all_sync(~0u, !(most > a.cap_reach)) != 0;
  }

  // Dropout: sets the sign of P if the element is dropped. `kept`: the keep factor, shifted so that
  // bit 31 is set if the element is kept.
  __device__ __forceinline__ static float WithSign(float x, unsigned kept) {
    return __uint_as_float(__float_as_uint(x) | (~kept & 0x80000000u));
  }
  // Returns 1 if P's sign marks the element as kept, else 0.
  __device__ __forceinline__ static float Kept(float p) {
    return __float_as_int(p) < 0 ? 0.0f : 1.0f;
  }

 private:
  __device__ __forceinline__ float Distance(int query, int key) const {
    return distance + static_cast<float>(query - key);
  }
};

}  // namespace sm90
