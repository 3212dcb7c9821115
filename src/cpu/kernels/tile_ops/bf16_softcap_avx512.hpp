// Softcap for the softmax and the gradient of the bf16 engines with AVX-512.
#pragma once

#include <hwy/highway.h>

#include "cpu/kernels/tile_ops/bf16_exp2_avx512.hpp"

#if HWY_ARCH_X86_64
#include <immintrin.h>

HWY_PUSH_ATTRIBUTES(ATTN_AVX512_BF16)
namespace attn::cpu::avx512 {

inline constexpr int kAbsMax = 0x0B;  // VRANGEPS: the absolute value that is larger

// What all rows need for score = cap tanh(scale x / cap).
struct Cap {
  // |y| up to which kShort is exact enough.
  static constexpr float kLimit = 0.6F;
  // tanh(y) / y by powers of y^2, with a relative error of at most 8e-8 (minimax).
  static constexpr float kShort[5] = {0.99999993F, -0.3333231F, 0.13310174F, -0.05210148F,
                                      0.01547543F};
  float ratio;      // scale / cap
  float factor;     // cap log2(e)
  float shortest;   // |x| up to which the short polynomial is used
  float powers[5];  // coefficients of the score times log2(e), by powers of x^2
  float tanh[5];    // those of tanh(ratio x)

  Cap(float scale, float softcap) : ratio(scale / softcap), factor(softcap * kLog2E) {
    // Outside of these ranges a coefficient or power may overflow.
    const bool moderate = ratio > 1e-3F && ratio < 1e3F && softcap > 1e-3F && softcap < 1e6F;
    shortest = moderate ? kLimit / ratio : -1.0F;
    float power = ratio;
    for (int n = 0; n < 5; ++n, power *= ratio * ratio) {
      tanh[n] = kShort[n] * power;
      powers[n] = kShort[n] * (power * factor);
    }
  }
};

// The polynomial with coefficients of ascending powers of `square`.
HWY_INLINE __m512 PowersOf(__m512 square, const float (&coefficients)[5]) {
  __m512 p = _mm512_set1_ps(coefficients[4]);
  p = _mm512_fmadd_ps(p, square, _mm512_set1_ps(coefficients[3]));
  p = _mm512_fmadd_ps(p, square, _mm512_set1_ps(coefficients[2]));
  p = _mm512_fmadd_ps(p, square, _mm512_set1_ps(coefficients[1]));
  return _mm512_fmadd_ps(p, square, _mm512_set1_ps(coefficients[0]));
}

// tanh(y) = y P(y^2) / Q(y^2) with a relative error of at most 1.5e-7 up to 8, where tanh is 1 -
// 2.3e-7. All coefficients are positive, so nothing cancels. NaN stays NaN.
HWY_INLINE __m512 Tanh(__m512 y) {
  constexpr float kBound = 8.0F;
  y = _mm512_max_ps(_mm512_set1_ps(-kBound), _mm512_min_ps(_mm512_set1_ps(kBound), y));
  const __m512 square = _mm512_mul_ps(y, y);
  __m512 p = _mm512_set1_ps(1.1428388e-5F);
  p = _mm512_fmadd_ps(p, square, _mm512_set1_ps(2.95102042e-3F));
  p = _mm512_fmadd_ps(p, square, _mm512_set1_ps(1.29256598e-1F));
  p = _mm512_fmadd_ps(p, square, _mm512_set1_ps(9.99999854e-1F));
  __m512 q = _mm512_set1_ps(2.45919992e-7F);
  q = _mm512_fmadd_ps(q, square, _mm512_set1_ps(2.386687e-4F));
  q = _mm512_fmadd_ps(q, square, _mm512_set1_ps(2.38155403e-2F));
  q = _mm512_fmadd_ps(q, square, _mm512_set1_ps(4.62588754e-1F));
  q = _mm512_fmadd_ps(q, square, _mm512_set1_ps(1.0F));
  // Division takes 16 cycles; a reciprocal of 14 bits, refined once, is off by one rounding.
  p = _mm512_mul_ps(p, y);
  const __m512 reciprocal = _mm512_rcp14_ps(q);
  const __m512 quotient = _mm512_mul_ps(p, reciprocal);
  return _mm512_fmadd_ps(_mm512_fnmadd_ps(quotient, q, p), reciprocal, quotient);
}

}  // namespace attn::cpu::avx512
HWY_POP_ATTRIBUTES
#endif
