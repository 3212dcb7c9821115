// 2^x and reductions for the bf16 engines with AVX-512.
#pragma once

#include <hwy/highway.h>

#include "cpu/kernels/tile_ops/bf16_avx512.hpp"

#if HWY_ARCH_X86_64
#include <immintrin.h>

HWY_PUSH_ATTRIBUTES(ATTN_AVX512_BF16)
namespace attn::cpu::avx512 {

inline constexpr float kLog2E = 1.44269504088896340736F;

// 2^x, and 0 where `kept` has no bit.
// 2^x = 2^(x - floor x) * 2^(floor x). The first factor is a polynomial that is exactly 1 at 0 and
// has an error of at most 1e-7 (minimax on [0, 1)). 2^-inf = 0; NaN stays NaN.
template <bool kMasked>
HWY_INLINE __m512 Exp2(__m512 x, __mmask16 kept) {
  constexpr int kMinusFloor = 0x09;  // no fraction bits, rounded down, without exceptions
  const __m512 r = _mm512_reduce_ps(x, kMinusFloor);
  __m512 y = _mm512_set1_ps(1.8671305e-3F);
  y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(9.0170298e-3F));
  y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(5.5799913e-2F));
  y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(2.4016444e-1F));
  y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(6.9315130e-1F));
  y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(1.0F));
  if constexpr (kMasked) return _mm512_maskz_scalef_ps(kept, y, x);
  return _mm512_scalef_ps(y, x);
}
HWY_INLINE __m512 Exp2(__m512 x) {
  return Exp2<false>(x, 0);
}

struct Larger {
  HWY_INLINE __m512 operator()(__m512 a, __m512 b) const { return _mm512_max_ps(a, b); }
};
struct Sum {
  HWY_INLINE __m512 operator()(__m512 a, __m512 b) const { return _mm512_add_ps(a, b); }
};

template <class Join>
HWY_INLINE __m512 JoinLanes(__m512 x, __m512 y) {
  return Join()(_mm512_shuffle_f32x4(x, y, 0x88), _mm512_shuffle_f32x4(x, y, 0xDD));
}

// Lane n of the result is the reduction of all lanes of rows[n].
template <class Join>
HWY_INLINE __m512 ReduceRows(__m512 (&rows)[16]) {
  constexpr Join join;
  for (int n = 0; n < 16; n += 2) {
    rows[n] =
        join(_mm512_unpacklo_ps(rows[n], rows[n + 1]), _mm512_unpackhi_ps(rows[n], rows[n + 1]));
  }
  for (int n = 0; n < 16; n += 4) {  // then four rows per 128-bit lane
    const __m512d low = _mm512_castps_pd(rows[n]);
    const __m512d high = _mm512_castps_pd(rows[n + 2]);
    rows[n] = join(_mm512_castpd_ps(_mm512_unpacklo_pd(low, high)),
                   _mm512_castpd_ps(_mm512_unpackhi_pd(low, high)));
  }
  return JoinLanes<Join>(JoinLanes<Join>(rows[0], rows[4]), JoinLanes<Join>(rows[8], rows[12]));
}

// The pairs that dropout keeps among the 32 from row r, column c on.
HWY_INLINE __mmask32 Kept(const Bf16Dropout& x, std::int64_t r, std::int64_t c) {
  const auto* bytes = reinterpret_cast<const __m256i*>(x.bytes + r * x.row + c);
  return _mm256_cmple_epu8_mask(_mm256_loadu_si256(bytes),
                                _mm256_set1_epi8(static_cast<char>(x.last_kept)));
}

}  // namespace attn::cpu::avx512
HWY_POP_ATTRIBUTES
#endif
