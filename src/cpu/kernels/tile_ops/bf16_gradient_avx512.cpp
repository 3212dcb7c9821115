// P and dS of the backward's bf16 engines with AVX-512.
#include <hwy/highway.h>

#include "cpu/kernels/tile_ops/bf16_addend_avx512.hpp"
#include "cpu/kernels/tile_ops/bf16_exp2_avx512.hpp"
#include "cpu/kernels/tile_ops/bf16_softcap_avx512.hpp"

#if HWY_ARCH_X86_64
#include <immintrin.h>

#include <algorithm>

HWY_PUSH_ATTRIBUTES(ATTN_AVX512_BF16)
namespace attn::cpu {
namespace {

using avx512::Cap;
using avx512::Exp2;
using avx512::Kept;
using avx512::kLog2E;

struct ProbGradient {
  __m512 p, ds;
};

// Where tanh of softcap comes from: there is none, from memory, or from products that are below
// Cap::shortest or may have any size.
enum class Tanh : std::uint8_t { none, stored, small, any };

// One row. Addend: see bf16_addend_avx512.hpp.
template <bool kDropout, bool kHidden, Tanh kTanh, class Addend>
class RowGradient {
  static constexpr bool kCaps = kTanh == Tanh::small || kTanh == Tanh::any;

 public:
  HWY_INLINE RowGradient(const Bf16Gradient& x, const Cap& cap, std::int64_t r)
      : s_(x.s + r * x.cols),
        dp_(x.dp + r * x.cols),
        tanh_(kTanh == Tanh::stored ? x.tanh + r * x.cols : nullptr),
        cap_(cap),
        addend_(x.addend, r, kLog2E),
        by_(_mm512_set1_ps(kCaps ? cap.factor : x.scale * kLog2E)),
        minus_(_mm512_set1_ps(-x.lse[r] * kLog2E)),
        delta_(_mm512_set1_ps(x.delta[r])),
        factor_(_mm512_set1_ps(x.dropout.factor)) {}

  HWY_INLINE void Prefetch(std::int64_t c) const { addend_.Prefetch(c); }

  // The 16 pairs from column c on. `kept`: those that dropout keeps. `seen`: visible ones.
  HWY_INLINE ProbGradient At(std::int64_t c, __mmask16 kept, __mmask16 seen) const {
    const __m512 minus = addend_.template Add<kHidden>(minus_, c, seen);
    __m512 s = _mm512_loadu_ps(s_ + c);
    if constexpr (kTanh == Tanh::small) {
      s = _mm512_mul_ps(avx512::PowersOf(_mm512_mul_ps(s, s), cap_.tanh), s);
    } else if constexpr (kTanh == Tanh::any) {
      s = avx512::Tanh(_mm512_mul_ps(s, _mm512_set1_ps(cap_.ratio)));
    }
    const __m512 p = Exp2<kHidden>(_mm512_fmadd_ps(s, by_, minus), seen);
    __m512 grad = _mm512_loadu_ps(dp_ + c);
    __m512 dropped = p;
    if constexpr (kDropout) {
      dropped = _mm512_maskz_mov_ps(kept, p);
      grad = _mm512_maskz_mul_ps(kept, grad, factor_);
    }
    grad = _mm512_sub_ps(grad, delta_);
    if constexpr (kTanh != Tanh::none) {
      const __m512 t = kCaps ? s : _mm512_loadu_ps(tanh_ + c);
      grad = _mm512_mul_ps(grad, _mm512_fnmadd_ps(t, t, _mm512_set1_ps(1.0F)));
    }
    // A hidden pair has no gradient even where dP is not finite.
    if constexpr (kHidden) return {dropped, _mm512_maskz_mul_ps(seen, p, grad)};
    return {dropped, _mm512_mul_ps(p, grad)};
  }

 private:
  const float* s_;
  const float* dp_;
  const float* tanh_;
  const Cap& cap_;
  Addend addend_;
  __m512 by_, minus_;  // P = 2^(s by + minus + addend), with tanh in place of s if kCaps
  __m512 delta_;
  __m512 factor_;  // of dropout
};

HWY_INLINE __m512i Rounded(const ProbGradient (&of)[2], __m512 ProbGradient::* which) {
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(of[1].*which, of[0].*which));
}

// Stores dS of columns [c, c + 32) as dbias, or adds it to the sums. `rounded`: dS in bf16.
HWY_INLINE void StoreDbias(const Bf16Dbias& to, std::int64_t r, std::int64_t c,
                           const ProbGradient (&of)[2], __m512i rounded) {
  if (to.sums != nullptr) {
    float* sums = to.sums + r * to.row + c;
    __m512 low = of[0].ds;
    __m512 high = of[1].ds;
    if (!to.first) {
      low = _mm512_add_ps(_mm512_loadu_ps(sums), low);
      high = _mm512_add_ps(_mm512_loadu_ps(sums + 16), high);
    }
    if (!to.last) {
      _mm512_storeu_ps(sums, low);
      _mm512_storeu_ps(sums + 16, high);
      return;
    }
    rounded = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
  }
  char* out = to.rows[r] + 2 * c;
  if (c + 32 > to.keys) {
    const auto some = static_cast<unsigned>(std::max<std::int64_t>(to.keys - c, 0));
    _mm512_mask_storeu_epi16(out, (__mmask32{1} << some) - 1, rounded);
  } else if (to.stream) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(out), rounded);
  } else {
    _mm512_storeu_si512(out, rounded);
  }
}

// Rows r and r + 1. Interleaving them within 128-bit lanes gives pairs of rows of two packed
// blocks, with four columns of each eight in the first block and four in the second. Their natural
// order would need another rounding instruction, which takes as long as four multiply-adds. words:
// those of rows r and r + 1, if kHidden.
template <bool kDropout, bool kHidden, Tanh kTanh, class Addend>
HWY_INLINE void GradientRows(const Bf16Gradient& x, const Cap& cap, std::int64_t r,
                             const std::uint32_t* const (&words)[2]) {
  using Row = RowGradient<kDropout, kHidden, kTanh, Addend>;
  const Row rows[2] = {Row(x, cap, r), Row(x, cap, r + 1)};
  for (std::int64_t c = 0; c < x.cols; c += 32) {
    __m512i p[2];
    __m512i ds[2];
    for (std::int64_t n = 0; n < 2; ++n) {
      const __mmask32 kept = kDropout ? Kept(x.dropout, r + n, c) : __mmask32{0};
      const std::uint32_t seen = kHidden ? words[n][c / 32] : 0;
      rows[n].Prefetch(c);
      const ProbGradient of[2] = {
          rows[n].At(c, static_cast<__mmask16>(kept), static_cast<__mmask16>(seen)),
          rows[n].At(c + 16, static_cast<__mmask16>(kept >> 16),
                     static_cast<__mmask16>(seen >> 16))};
      if (x.ds_f32 != nullptr) {
        float* out = x.ds_f32 + (r + n) * x.cols + c;
        _mm512_storeu_ps(out, of[0].ds);
        _mm512_storeu_ps(out + 16, of[1].ds);
      }
      p[n] = Rounded(of, &ProbGradient::p);
      ds[n] = Rounded(of, &ProbGradient::ds);
      _mm512_storeu_si512(x.ds_rows + (r + n) * x.cols + c, ds[n]);
      if (x.dbias.rows != nullptr && r + n < x.count) StoreDbias(x.dbias, r + n, c, of, ds[n]);
    }
    const std::int64_t at = c / kPackedCols * x.packed_cols + r * kPackedCols;
    _mm512_storeu_si512(x.p + at, _mm512_unpacklo_epi16(p[0], p[1]));
    _mm512_storeu_si512(x.p + at + x.packed_cols, _mm512_unpackhi_epi16(p[0], p[1]));
    _mm512_storeu_si512(x.ds + at, _mm512_unpacklo_epi16(ds[0], ds[1]));
    _mm512_storeu_si512(x.ds + at + x.packed_cols, _mm512_unpackhi_epi16(ds[0], ds[1]));
  }
}

// Zeros for rows [r, kBf16PartRows).
void ClearRows(const Bf16Gradient& x, std::int64_t r) {
  for (; r < kBf16PartRows; r += 2) {
    for (std::int64_t c = 0; c < x.cols; c += kPackedCols) {
      const std::int64_t at = c / kPackedCols * x.packed_cols + r * kPackedCols;
      _mm512_storeu_si512(x.p + at, _mm512_setzero_si512());
      _mm512_storeu_si512(x.ds + at, _mm512_setzero_si512());
    }
    for (std::int64_t c = 0; c < 2 * x.cols; c += 32) {
      _mm512_storeu_si512(x.ds_rows + r * x.cols + c, _mm512_setzero_si512());
    }
  }
}

constexpr std::int64_t kMostWords = 8;
constexpr std::uint32_t kNoPairs[kMostWords] = {};
constexpr std::uint32_t kAllPairs[kMostWords] = {~0U, ~0U, ~0U, ~0U, ~0U, ~0U, ~0U, ~0U};

// Whether products of rows r and r + 1 have at most the size `most`. Hidden ones count too.
HWY_INLINE bool AreSmall(const Bf16Gradient& x, std::int64_t r, float most) {
  __m512 even = _mm512_setzero_ps();
  __m512 odd = even;
  const float* s = x.s + r * x.cols;
  for (std::int64_t c = 0; c < 2 * x.cols; c += 32) {
    even = _mm512_range_ps(even, _mm512_loadu_ps(s + c), avx512::kAbsMax);
    odd = _mm512_range_ps(odd, _mm512_loadu_ps(s + c + 16), avx512::kAbsMax);
  }
  return _mm512_cmp_ps_mask(_mm512_range_ps(even, odd, avx512::kAbsMax), _mm512_set1_ps(most),
                            _CMP_NLE_UQ) == 0;
}

template <bool kDropout, bool kHidden, Tanh kTanh, class Addend>
HWY_INLINE void GradientOfSize(const Bf16Gradient& x, const Cap& cap, std::int64_t r,
                               const std::uint32_t* const (&words)[2]) {
  if (kTanh == Tanh::any && AreSmall(x, r, cap.shortest)) {
    GradientRows<kDropout, kHidden, Tanh::small, Addend>(x, cap, r, words);
  } else {
    GradientRows<kDropout, kHidden, kTanh, Addend>(x, cap, r, words);
  }
}

template <bool kDropout, Tanh kTanh, class Addend>
HWY_INLINE void Gradient(const Bf16Gradient& x) {
  const auto words_of = [&](std::int64_t r) HWY_ATTR {
    if (r >= x.count) return kNoPairs;
    return x.visible.words == nullptr ? kAllPairs : x.visible.words + r * x.visible.row;
  };
  const Cap cap(x.scale, kTanh == Tanh::any ? x.softcap : 1.0F);
  const bool hidden = x.visible.words != nullptr;
  std::int64_t r = 0;
  for (; r < x.count; r += 2) {
    if (x.ahead != nullptr) x.ahead->step();
    const std::uint32_t* const words[2] = {words_of(r), words_of(r + 1)};
    if (hidden || r + 1 == x.count) {
      GradientOfSize<kDropout, true, kTanh, Addend>(x, cap, r, words);
    } else {
      GradientOfSize<kDropout, false, kTanh, Addend>(x, cap, r, words);
    }
  }
  ClearRows(x, r);
}

template <Tanh kTanh, class Addend>
HWY_INLINE void Gradient(const Bf16Gradient& x) {
  x.dropout.bytes == nullptr ? Gradient<false, kTanh, Addend>(x) : Gradient<true, kTanh, Addend>(x);
}

}  // namespace

void gradient_avx512(const Bf16Gradient& x) {
  if (x.tanh != nullptr) return Gradient<Tanh::stored, avx512::NoAddend>(x);
  if (x.softcap > 0.0F) return Gradient<Tanh::any, avx512::NoAddend>(x);
  switch (x.addend.kind) {
    case Bf16Addend::Kind::none: return Gradient<Tanh::none, avx512::NoAddend>(x);
    case Bf16Addend::Kind::bias_bf16: return Gradient<Tanh::none, avx512::AddBias<true>>(x);
    case Bf16Addend::Kind::bias_f32: return Gradient<Tanh::none, avx512::AddBias<false>>(x);
    case Bf16Addend::Kind::slope: return Gradient<Tanh::none, avx512::AddSlope>(x);
  }
}

}  // namespace attn::cpu
HWY_POP_ATTRIBUTES
#endif
