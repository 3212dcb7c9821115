// The softmax of the bf16 engines with AVX-512: one step for a strip, with a bf16 result.
#include <hwy/highway.h>

#include "cpu/kernels/tile_ops/bf16_addend_avx512.hpp"
#include "cpu/kernels/tile_ops/bf16_exp2_avx512.hpp"

#if HWY_ARCH_X86_64
#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <limits>

HWY_PUSH_ATTRIBUTES(ATTN_AVX512_BF16)
namespace attn::cpu {
namespace {

using avx512::Exp2;
using avx512::Kept;
using avx512::kLog2E;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

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

// Each functor below turns a product into the exponent of 2 that its P needs: log2(e) (score -
// shift).
struct Scale {
  __m512 by, minus;
  HWY_INLINE __m512 operator()(__m512 x) const { return _mm512_fmadd_ps(x, by, minus); }
};

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
  float powers[5];  // its coefficients for x in place of y, times `factor`

  Cap(float scale, float softcap) : ratio(scale / softcap), factor(softcap * kLog2E) {
    // Outside of these ranges a coefficient or power may overflow.
    const bool moderate = ratio > 1e-3F && ratio < 1e3F && softcap > 1e-3F && softcap < 1e6F;
    shortest = moderate ? kLimit / ratio : -1.0F;
    float power = ratio * factor;
    for (int n = 0; n < 5; ++n, power *= ratio * ratio) powers[n] = kShort[n] * power;
  }
};

// Products of a row whose scores are far from the cap, as they mostly are: 5 instructions more than
// without a cap.
struct CapSmall {
  const Cap& cap;
  __m512 minus;
  HWY_INLINE __m512 operator()(__m512 x) const {
    const __m512 square = _mm512_mul_ps(x, x);
    __m512 p = _mm512_set1_ps(cap.powers[4]);
    p = _mm512_fmadd_ps(p, square, _mm512_set1_ps(cap.powers[3]));
    p = _mm512_fmadd_ps(p, square, _mm512_set1_ps(cap.powers[2]));
    p = _mm512_fmadd_ps(p, square, _mm512_set1_ps(cap.powers[1]));
    p = _mm512_fmadd_ps(p, square, _mm512_set1_ps(cap.powers[0]));
    return _mm512_fmadd_ps(p, x, minus);
  }
};

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

struct CapAny {
  __m512 ratio, factor, minus;
  HWY_INLINE __m512 operator()(__m512 x) const {
    return _mm512_fmadd_ps(Tanh(_mm512_mul_ps(x, ratio)), factor, minus);
  }
};

// The maximum over the lanes of `most` is the row's largest visible value; -inf if none is visible.
// `size`: the same for absolute values; only with kCap.
struct Largest {
  __m512 most, size;
};
template <bool kHidden, bool kCap>
HWY_INLINE Largest RowMax(const float* s, std::int64_t cols, const std::uint32_t* visible) {
  constexpr int kLargerSize = 0x0B;  // VRANGEPS: the absolute value that is larger
  __m512 even = _mm512_set1_ps(-kInfinity);
  __m512 odd = even;
  __m512 size = _mm512_setzero_ps();
  for (std::int64_t c = 0; c < cols; c += 32) {
    const __m512 low = _mm512_loadu_ps(s + c);
    const __m512 high = _mm512_loadu_ps(s + c + 16);
    if constexpr (kHidden) {
      const std::uint32_t seen = visible[c / 32];
      const auto of_low = static_cast<__mmask16>(seen);
      const auto of_high = static_cast<__mmask16>(seen >> 16);
      even = _mm512_mask_max_ps(even, of_low, even, low);
      odd = _mm512_mask_max_ps(odd, of_high, odd, high);
      if constexpr (kCap) {
        size = _mm512_mask_range_ps(size, of_low, size, low, kLargerSize);
        size = _mm512_mask_range_ps(size, of_high, size, high, kLargerSize);
      }
    } else {
      even = _mm512_max_ps(even, low);
      odd = _mm512_max_ps(odd, high);
      if constexpr (kCap) {
        size = _mm512_range_ps(size, low, kLargerSize);
        size = _mm512_range_ps(size, high, kLargerSize);
      }
    }
  }
  return {_mm512_max_ps(even, odd), size};
}

// s = P of products s, 0 where hidden, rounded to bf16 in the first half of the row. The sum over
// the returned lanes is the row sum, before rounding to bf16.
template <bool kDropout, bool kHidden, class Exponent>
HWY_INLINE __m512 ExponentiateRow(float* s, std::int64_t cols, const Exponent& exponent,
                                  const Bf16Dropout& dropout, std::int64_t row,
                                  const std::uint32_t* visible) {
  __m512 even = _mm512_setzero_ps();
  __m512 odd = _mm512_setzero_ps();
  auto* out = reinterpret_cast<Bf16Bits*>(s);
  for (std::int64_t c = 0; c < cols; c += 32) {
    const std::uint32_t seen = kHidden ? visible[c / 32] : 0;
    __m512 low = Exp2<kHidden>(exponent(_mm512_loadu_ps(s + c)), static_cast<__mmask16>(seen));
    __m512 high =
        Exp2<kHidden>(exponent(_mm512_loadu_ps(s + c + 16)), static_cast<__mmask16>(seen >> 16));
    even = _mm512_add_ps(even, low);
    odd = _mm512_add_ps(odd, high);
    if constexpr (kDropout) {
      const __mmask32 kept = Kept(dropout, row, c);
      low = _mm512_maskz_mov_ps(static_cast<__mmask16>(kept), low);
      high = _mm512_maskz_mov_ps(static_cast<__mmask16>(kept >> 16), high);
    }
    _mm512_storeu_si512(out + c, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low)));
  }
  return _mm512_add_ps(even, odd);
}

// s = scores of products s. The largest visible one as in RowMax.
template <bool kHidden, class Addend>
HWY_INLINE __m512 ScoreRow(float* s, std::int64_t cols, float factor, const Addend& addend,
                           const std::uint32_t* visible) {
  const __m512 scale = _mm512_set1_ps(factor);
  __m512 most[2] = {_mm512_set1_ps(-kInfinity), _mm512_set1_ps(-kInfinity)};
  for (std::int64_t c = 0; c < cols; c += 32) {
    const std::uint32_t words = kHidden ? visible[c / 32] : 0;
    addend.Prefetch(c);
    for (int half = 0; half < 2; ++half) {
      const auto seen = static_cast<__mmask16>(words >> (16 * half));
      float* at = s + c + 16 * half;
      const __m512 score = _mm512_fmadd_ps(_mm512_loadu_ps(at), scale,
                                           addend.template Value<kHidden>(c + 16 * half, seen));
      _mm512_storeu_ps(at, score);
      most[half] = kHidden ? _mm512_mask_max_ps(most[half], seen, most[half], score)
                           : _mm512_max_ps(most[half], score);
    }
  }
  return _mm512_max_ps(most[0], most[1]);
}

// What turns products into scores, besides the scale.
template <bool kCap_, class Addend_>
struct ScoresBy {
  static constexpr bool kCap = kCap_;
  using Addend = Addend_;
};

// At most 16 rows of `x`: [row0, row0 + count).
struct RowGroup {
  const Bf16Softmax& x;
  const Cap& cap;
  std::int64_t row0;
  std::int64_t count;
  [[nodiscard]] HWY_INLINE float* s(std::int64_t r) const { return x.s + (row0 + r) * x.lds; }
  [[nodiscard]] HWY_INLINE const std::uint32_t* visible(std::int64_t r) const {
    return x.visible.words + (row0 + r) * x.visible.row;
  }
};

// The largest score of each row. With an addend, products become scores. sizes: with a cap, the
// largest |product| of each.
template <bool kHidden, class Scores>
HWY_INLINE __m512 MaxScores(const RowGroup& of, float* sizes) {
  using Addend = typename Scores::Addend;
  constexpr bool kAdds = Addend::kAdds;
  __m512 rows[16];
  __m512 row_sizes[16];
  for (std::int64_t r = 0; r < 16; ++r) {
    Largest largest{_mm512_set1_ps(-kInfinity), _mm512_setzero_ps()};
    const std::uint32_t* visible = kHidden ? of.visible(r) : nullptr;
    if (r >= of.count) {
    } else if constexpr (kAdds) {
      const Addend addend(of.x.addend, of.row0 + r, 1.0F);
      largest.most = ScoreRow<kHidden>(of.s(r), of.x.cols, of.x.scale, addend, visible);
    } else {
      largest = RowMax<kHidden, Scores::kCap>(of.s(r), of.x.cols, visible);
    }
    rows[r] = largest.most;
    row_sizes[r] = largest.size;
  }
  const __m512 most = ReduceRows<Larger>(rows);
  if constexpr (Scores::kCap) {
    _mm512_store_ps(sizes, ReduceRows<Larger>(row_sizes));
    const __m512 capped = _mm512_mul_ps(Tanh(_mm512_mul_ps(most, _mm512_set1_ps(of.cap.ratio))),
                                        _mm512_set1_ps(of.x.softcap));
    const __mmask16 none = _mm512_cmp_ps_mask(most, _mm512_set1_ps(-kInfinity), _CMP_EQ_OQ);
    return _mm512_mask_mov_ps(capped, none, most);
  } else if constexpr (kAdds) {
    return most;
  } else {
    return _mm512_mul_ps(_mm512_set1_ps(of.x.scale), most);
  }
}

template <bool kDropout, bool kHidden, class Scores>
HWY_INLINE __m512 ExponentiateRow(const RowGroup& of, std::int64_t r, float shift, float size) {
  const Bf16Softmax& x = of.x;
  const __m512 minus = _mm512_set1_ps(-shift * kLog2E);
  const std::uint32_t* visible = kHidden ? of.visible(r) : nullptr;
  const auto row = [&](const auto& exponent) HWY_ATTR {
    return ExponentiateRow<kDropout, kHidden>(of.s(r), x.cols, exponent, x.dropout, of.row0 + r,
                                              visible);
  };
  if constexpr (Scores::kCap) {
    if (size <= of.cap.shortest) return row(CapSmall{of.cap, minus});
    return row(CapAny{_mm512_set1_ps(of.cap.ratio), _mm512_set1_ps(of.cap.factor), minus});
  } else {
    const float scale = Scores::Addend::kAdds ? 1.0F : x.scale;
    return row(Scale{_mm512_set1_ps(scale * kLog2E), minus});
  }
}

// Per-row maxima and sums are reduced for all rows together: 16 separate horizontal reductions
// would be 16 chains of dependent instructions.
template <bool kDropout, bool kHidden, class Scores>
HWY_INLINE void SoftmaxRows(const RowGroup& of) {
  const Bf16Softmax& x = of.x;
  const std::int64_t row0 = of.row0;
  alignas(64) float sizes[16];
  const __m512 tile_max = MaxScores<kHidden, Scores>(of, sizes);
  const auto exists = static_cast<__mmask16>((1U << of.count) - 1);
  const __m512 before = _mm512_maskz_loadu_ps(exists, x.row_max + row0);
  const __mmask16 grows = _mm512_mask_cmp_ps_mask(exists, tile_max, before, _CMP_GT_OQ);
  const __m512 largest = _mm512_mask_mov_ps(before, grows, tile_max);
  // If nothing is visible yet, the shift is 0: exp(-inf - 0) = 0, and a NaN stays NaN.
  const __mmask16 seen = _mm512_cmp_ps_mask(largest, _mm512_set1_ps(-kInfinity), _CMP_NEQ_UQ);
  const __m512 shift = _mm512_maskz_mov_ps(seen, largest);
  const __m512 rescale = Exp2(_mm512_mul_ps(_mm512_sub_ps(before, shift), _mm512_set1_ps(kLog2E)));
  alignas(64) float shifts[16];
  alignas(64) float rescales[16];
  _mm512_store_ps(shifts, shift);
  _mm512_store_ps(rescales, rescale);
  for (unsigned left = grows; left != 0; left &= left - 1) {
    const int r = std::countr_zero(left);
    const __m512 by = _mm512_set1_ps(rescales[r]);
    float* o = x.o + (row0 + r) * x.ldo;
    for (std::int64_t c = 0; c < x.ldo; c += 16) {
      _mm512_storeu_ps(o + c, _mm512_mul_ps(_mm512_loadu_ps(o + c), by));
    }
  }
  __m512 rows[16];
  for (std::int64_t r = 0; r < 16; ++r) {
    rows[r] = _mm512_setzero_ps();
    if (r < of.count) {
      rows[r] = ExponentiateRow<kDropout, kHidden, Scores>(of, r, shifts[r],
                                                           Scores::kCap ? sizes[r] : 0.0F);
    }
  }
  const __m512 sum = ReduceRows<Sum>(rows);
  __m512 total = _mm512_maskz_loadu_ps(exists, x.row_sum + row0);
  total = _mm512_mask_mul_ps(total, grows, total, rescale);
  _mm512_mask_storeu_ps(x.row_sum + row0, exists, _mm512_add_ps(total, sum));
  _mm512_mask_storeu_ps(x.row_max + row0, exists, largest);
}

template <bool kDropout, bool kHidden, class Scores>
HWY_INLINE void Softmax(const Bf16Softmax& x, const Cap& cap) {
  for (std::int64_t r = 0; r < x.rows; r += 16) {
    SoftmaxRows<kDropout, kHidden, Scores>({x, cap, r, std::min<std::int64_t>(16, x.rows - r)});
  }
}

template <class Scores>
HWY_INLINE void Softmax(const Bf16Softmax& x, const Cap& cap) {
  const bool hidden = x.visible.words != nullptr;
  if (x.dropout.bytes == nullptr) {
    hidden ? Softmax<false, true, Scores>(x, cap) : Softmax<false, false, Scores>(x, cap);
  } else {
    hidden ? Softmax<true, true, Scores>(x, cap) : Softmax<true, false, Scores>(x, cap);
  }
}

}  // namespace

void softmax_avx512(const Bf16Softmax& x) {
  const bool capped = x.softcap > 0.0F;
  const Cap cap(x.scale, capped ? x.softcap : 1.0F);
  if (capped) return Softmax<ScoresBy<true, avx512::NoAddend>>(x, cap);
  switch (x.addend.kind) {
    case Bf16Addend::Kind::none: return Softmax<ScoresBy<false, avx512::NoAddend>>(x, cap);
    case Bf16Addend::Kind::bias_bf16:
      return Softmax<ScoresBy<false, avx512::AddBias<true>>>(x, cap);
    case Bf16Addend::Kind::bias_f32:
      return Softmax<ScoresBy<false, avx512::AddBias<false>>>(x, cap);
    case Bf16Addend::Kind::slope: return Softmax<ScoresBy<false, avx512::AddSlope>>(x, cap);
  }
}

}  // namespace attn::cpu
HWY_POP_ATTRIBUTES
#endif
