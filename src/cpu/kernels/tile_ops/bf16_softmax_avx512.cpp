// The softmax of the bf16 engines with AVX-512: one step for a strip, with a bf16 result.
#include <hwy/highway.h>

#include "cpu/kernels/tile_ops/bf16_addend_avx512.hpp"
#include "cpu/kernels/tile_ops/bf16_exp2_avx512.hpp"
#include "cpu/kernels/tile_ops/bf16_softcap_avx512.hpp"

#if HWY_ARCH_X86_64
#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <limits>

HWY_PUSH_ATTRIBUTES(ATTN_AVX512_BF16)
namespace attn::cpu {
namespace {

using avx512::Cap;
using avx512::Exp2;
using avx512::kAbsMax;
using avx512::Kept;
using avx512::kLog2E;
using avx512::Larger;
using avx512::ReduceRows;
using avx512::Sum;
using avx512::Tanh;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Each functor below turns a product into the exponent of 2 that its P needs: log2(e) (score -
// shift).
struct Scale {
  __m512 by, minus;
  HWY_INLINE __m512 operator()(__m512 x) const { return _mm512_fmadd_ps(x, by, minus); }
};

// Products of a row whose scores are far from the cap, as they mostly are: 5 instructions more than
// without a cap.
struct CapSmall {
  const Cap& cap;
  __m512 minus;
  HWY_INLINE __m512 operator()(__m512 x) const {
    const __m512 square = _mm512_mul_ps(x, x);
    return _mm512_fmadd_ps(avx512::PowersOf(square, cap.powers), x, minus);
  }
};

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
class RowMaximum {
 public:
  HWY_INLINE RowMaximum()
      : even_(_mm512_set1_ps(-kInfinity)), odd_(even_), size_(_mm512_setzero_ps()) {}
  // Takes columns [c, c + 32).
  template <bool kHidden, bool kCap>
  HWY_INLINE void Take(const float* s, std::int64_t c, const std::uint32_t* visible) {
    const __m512 low = _mm512_loadu_ps(s + c);
    const __m512 high = _mm512_loadu_ps(s + c + 16);
    if constexpr (kHidden) {
      const std::uint32_t seen = visible[c / 32];
      const auto of_low = static_cast<__mmask16>(seen);
      const auto of_high = static_cast<__mmask16>(seen >> 16);
      even_ = _mm512_mask_max_ps(even_, of_low, even_, low);
      odd_ = _mm512_mask_max_ps(odd_, of_high, odd_, high);
      if constexpr (kCap) {
        size_ = _mm512_mask_range_ps(size_, of_low, size_, low, kAbsMax);
        size_ = _mm512_mask_range_ps(size_, of_high, size_, high, kAbsMax);
      }
    } else {
      even_ = _mm512_max_ps(even_, low);
      odd_ = _mm512_max_ps(odd_, high);
      if constexpr (kCap) {
        size_ = _mm512_range_ps(size_, low, kAbsMax);
        size_ = _mm512_range_ps(size_, high, kAbsMax);
      }
    }
  }
  [[nodiscard]] HWY_INLINE Largest Get() const { return {_mm512_max_ps(even_, odd_), size_}; }

 private:
  __m512 even_, odd_, size_;
};
template <bool kHidden, bool kCap>
HWY_INLINE Largest RowMax(const float* s, std::int64_t cols, const Bf16Visible& visible,
                          const std::uint32_t* words) {
  RowMaximum row;
  std::int64_t c = 0;
  if constexpr (kHidden) {
    for (; c < visible.full_begin; c += 32) row.Take<true, kCap>(s, c, words);
    for (; c < visible.full_end; c += 32) row.Take<false, kCap>(s, c, words);
  }
  for (; c < cols; c += 32) row.Take<kHidden, kCap>(s, c, words);
  return row.Get();
}

// s = P of products s, 0 where hidden, rounded to bf16 in the first half of the row.
template <class Exponent>
class RowExponents {
 public:
  HWY_INLINE RowExponents(float* s, const Exponent& exponent, const Bf16Dropout& dropout,
                          std::int64_t row, const std::uint32_t* visible)
      : s_(s),
        exponent_(exponent),
        dropout_(dropout),
        row_(row),
        visible_(visible),
        even_(_mm512_setzero_ps()),
        odd_(even_) {}
  // Takes columns [c, c + 32).
  template <bool kDropout, bool kHidden>
  HWY_INLINE void Take(std::int64_t c) {
    const std::uint32_t seen = kHidden ? visible_[c / 32] : 0;
    __m512 low = Exp2<kHidden>(exponent_(_mm512_loadu_ps(s_ + c)), static_cast<__mmask16>(seen));
    __m512 high =
        Exp2<kHidden>(exponent_(_mm512_loadu_ps(s_ + c + 16)), static_cast<__mmask16>(seen >> 16));
    even_ = _mm512_add_ps(even_, low);
    odd_ = _mm512_add_ps(odd_, high);
    if constexpr (kDropout) {
      const __mmask32 kept = Kept(dropout_, row_, c);
      low = _mm512_maskz_mov_ps(static_cast<__mmask16>(kept), low);
      high = _mm512_maskz_mov_ps(static_cast<__mmask16>(kept >> 16), high);
    }
    _mm512_storeu_si512(reinterpret_cast<Bf16Bits*>(s_) + c,
                        reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low)));
  }
  // The sum over these lanes is the row sum, before rounding to bf16.
  [[nodiscard]] HWY_INLINE __m512 Sum() const { return _mm512_add_ps(even_, odd_); }

 private:
  float* s_;
  const Exponent& exponent_;
  const Bf16Dropout& dropout_;
  std::int64_t row_;
  const std::uint32_t* visible_;
  __m512 even_, odd_;
};

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
    if (of.x.ahead != nullptr) of.x.ahead->step();
    if (r >= of.count) {
    } else if constexpr (kAdds) {
      const Addend addend(of.x.addend, of.row0 + r, 1.0F);
      largest.most = ScoreRow<kHidden>(of.s(r), of.x.cols, of.x.scale, addend, visible);
    } else {
      largest = RowMax<kHidden, Scores::kCap>(of.s(r), of.x.cols, of.x.visible, visible);
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
    RowExponents to(of.s(r), exponent, x.dropout, of.row0 + r, visible);
    std::int64_t c = 0;
    if constexpr (kHidden) {
      for (; c < x.visible.full_begin; c += 32) to.template Take<kDropout, true>(c);
      for (; c < x.visible.full_end; c += 32) to.template Take<kDropout, false>(c);
    }
    for (; c < x.cols; c += 32) to.template Take<kDropout, kHidden>(c);
    return to.Sum();
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
    if (x.ahead != nullptr) x.ahead->step();
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
