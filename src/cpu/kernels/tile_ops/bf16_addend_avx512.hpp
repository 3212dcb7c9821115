// Terms that the bf16 engines with AVX-512 add to scores as they read the products.
#pragma once

#include <hwy/highway.h>

#include "cpu/kernels/tile_ops/bf16_avx512.hpp"

#if HWY_ARCH_X86_64
#include <immintrin.h>

HWY_PUSH_ATTRIBUTES(ATTN_AVX512_BF16)
namespace attn::cpu::avx512 {

// The addend of one row. Value() returns those of 16 columns, Add() `to` plus `factor` times them.
// With kMasked only columns `seen` are read; others may be outside of the bias. Value() of a bias
// leaves out the factor.
struct NoAddend {
  static constexpr bool kAdds = false;
  HWY_INLINE NoAddend(const Bf16Addend&, std::int64_t /*row*/, float /*factor*/) {}
  template <bool kMasked>
  HWY_INLINE __m512 Add(__m512 to, std::int64_t /*column*/, __mmask16 /*seen*/) const {
    return to;
  }
  HWY_INLINE void Prefetch(std::int64_t /*column*/) const {}
};

template <bool kBf16>
struct AddBias {
  static constexpr bool kAdds = true;
  const char* bias;
  std::int64_t ahead;
  __m512 factor;
  HWY_INLINE AddBias(const Bf16Addend& of, std::int64_t r, float by)
      : bias(of.bias[r]), ahead(of.ahead), factor(_mm512_set1_ps(by)) {}
  // Prefetches what columns [c, c + 32) of the next tile read.
  HWY_INLINE void Prefetch(std::int64_t c) const {
    if (ahead == 0) return;
    _mm_prefetch(bias + ahead + (kBf16 ? 2 : 4) * c, _MM_HINT_T0);
    if constexpr (!kBf16) _mm_prefetch(bias + ahead + 4 * c + 64, _MM_HINT_T0);
  }
  template <bool kMasked>
  HWY_INLINE __m512 Value(std::int64_t c, __mmask16 seen) const {
    if constexpr (kBf16) {
      const char* at = bias + 2 * c;
      const __m256i bits = kMasked ? _mm256_maskz_loadu_epi16(seen, at)
                                   : _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
      return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
    } else {
      const char* at = bias + 4 * c;
      return kMasked ? _mm512_maskz_loadu_ps(seen, at) : _mm512_loadu_ps(at);
    }
  }
  template <bool kMasked>
  HWY_INLINE __m512 Add(__m512 to, std::int64_t c, __mmask16 seen) const {
    return _mm512_fmadd_ps(Value<kMasked>(c, seen), factor, to);
  }
};

// ALiBi: -slope |distance|.
struct AddSlope {
  static constexpr bool kAdds = true;
  __m512 first;  // distances of columns 0 to 15
  __m512 factor;
  HWY_INLINE AddSlope(const Bf16Addend& of, std::int64_t r, float by)
      : first(_mm512_sub_ps(_mm512_set1_ps(of.distance[r]),
                            _mm512_set_ps(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0))),
        factor(_mm512_set1_ps(-of.slope[r] * by)) {}
  HWY_INLINE __m512 Distance(std::int64_t c) const {
    return _mm512_abs_ps(_mm512_sub_ps(first, _mm512_set1_ps(static_cast<float>(c))));
  }
  template <bool kMasked>
  HWY_INLINE __m512 Value(std::int64_t c, __mmask16 /*seen*/) const {
    return _mm512_mul_ps(Distance(c), factor);
  }
  template <bool kMasked>
  HWY_INLINE __m512 Add(__m512 to, std::int64_t c, __mmask16 /*seen*/) const {
    return _mm512_fmadd_ps(Distance(c), factor, to);
  }
  HWY_INLINE void Prefetch(std::int64_t /*column*/) const {}
};

}  // namespace attn::cpu::avx512
HWY_POP_ATTRIBUTES
#endif
