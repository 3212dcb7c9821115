// Score options of sm90/backward.cu, in a consumer's registers: softcap, ALiBi, dropout. Layout of
// scores, transposed: ptx/wgmma.cuh.
#pragma once
#include "shared/dropout.cuh"
#include "shared/score.cuh"
#include "shared/sequence.cuh"
#include "sm90/backward_config.cuh"

namespace sm90 {

using shared::kHasScoreMod;
inline constexpr bool kSoftcap = config::softcap != 0;
inline constexpr bool kAlibi = config::alibi != 0;
inline constexpr bool kDropout = config::dropout != 0;
// Where the sign of P says what dropout drops, and no dropout bytes are kept until dS is computed.
inline constexpr bool kSignedP = kDropout && !kSoftcap;

// The options of a step. Elements are named by their query and key, counted from this thread's
// first.
struct ScoreOptions {
  shared::ScoreParams score;
  shared::Dropout dropout;
  float distance;  // ALiBi: from the diagonal of the first query to the first key
  shared::DropoutBits bits[kDropout && !kSignedP ? kTileQ / 16 : 1];

  // Query i and key j are this thread's first.
  __device__ __forceinline__ void Start(const shared::Arguments& a, const shared::Sequence& seq,
                                        int head, int i, int j) {
    if constexpr (kHasScoreMod) score = shared::ScoreParamsOf(a, seq.idx, head);
    if constexpr (kAlibi) distance = static_cast<float>(i + seq.diag - j);
    if constexpr (kDropout) dropout = shared::DropoutOf(a, seq.idx, head);
  }

  // The dropout bytes of a warp's 16 keys from j; with kSignedP into the signs of s, which is P.
  __device__ __forceinline__ void GenerateBits(int i0, int j, Scores& s) {
    if constexpr (kDropout) {
#pragma unroll
      for (int k = 0; k < kTileQ / 16; k += 2) {
        shared::DropoutBits pair[2];
        shared::GenerateBitsTransposed<false>(dropout, i0 + 16 * k, j, pair[0], pair[1]);
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          if constexpr (kSignedP) {
            SignDropped(pair[n], s + 8 * (k + n));
          } else {
            bits[k + n] = pair[n];
          }
        }
      }
    }
  }

  // The score of a raw product, in units of log2, + `addend`. in_series: shared/score.cuh.
  template <bool in_series>
  __device__ __forceinline__ float Score(const shared::Arguments& a, float raw, int query, int key,
                                         float addend) const {
    float unused;
    return shared::ModifyScore<in_series>(a, score, raw, Distance(query, key), 0.0f, addend,
                                          unused);
  }
  // The derivative of softcap, from log2(P) and lse: log2(P) + lse is the score. Within [0, 1],
  // also for hidden keys and rows without keys, where the sum is -inf or NaN.
  __device__ __forceinline__ float Slope(const shared::Arguments& a, float log2_p, float lse,
                                         int query, int key) const {
    float capped = log2_p + lse;
    if constexpr (kAlibi) capped = fmaf(score.slope, fabsf(Distance(query, key)), capped);
    const float ratio = capped * a.cap_unit;
    return __saturatef(fmaf(-ratio, ratio, 1.0f));
  }

  // With kSignedP: 1 or 0.
  __device__ __forceinline__ static float Kept(float p) {
    return __float_as_int(p) < 0 ? 0.0f : 1.0f;
  }
  // Pairs of queries 8 i + 0 and 1: f16 1 or 0, see shared/dropout.cuh. h: key 8 h.
  __device__ __forceinline__ unsigned Keeps(int i, int h) const {
    return shared::KeepFactors<true>(dropout, bits[i / 2], i % 2, h);
  }

 private:
  // `p`: of 16 queries. An element is kept if bit 13 of its f16 1 or 0 is set.
  __device__ __forceinline__ void SignDropped(const shared::DropoutBits& draws, float* p) const {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const unsigned keeps = shared::KeepFactors<true>(dropout, draws, n / 2, n % 2);
      p[2 * n] = WithSign(p[2 * n], keeps << 18);
      p[2 * n + 1] = WithSign(p[2 * n + 1], keeps << 2);
    }
  }
  __device__ __forceinline__ static float WithSign(float x, unsigned kept) {
    return __uint_as_float(__float_as_uint(x) | (~kept & 0x80000000u));
  }

  __device__ __forceinline__ float Distance(int query, int key) const {
    return distance + static_cast<float>(query - key);
  }
};

}  // namespace sm90
