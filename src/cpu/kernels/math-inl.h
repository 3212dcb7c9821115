// exp, tanh and reductions on vectors of f32 or f64. NaN stays NaN: a visible NaN score must reach
// its output.
#if defined(ATTN_CPU_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTN_CPU_MATH_INL_H_
#undef ATTN_CPU_MATH_INL_H_
#else
#define ATTN_CPU_MATH_INL_H_
#endif

#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include <cstdint>
#include <limits>
#include <type_traits>

HWY_BEFORE_NAMESPACE();
namespace attn::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// 2^r by a polynomial of degree 6 that is exactly 1 at 0. c: the coefficients of r to r^6.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V PowerOfTwo(D d, V r, const float (&c)[6]) {
  V y = hn::Set(d, c[5]);
  for (int n = 4; n >= 0; --n) y = hn::MulAdd(y, r, hn::Set(d, c[n]));
  return hn::MulAdd(y, r, hn::Set(d, 1.0F));
}

// max(x, bound) and min(x, bound). NaN stays NaN.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V RaiseTo(D, V bound, V x) {
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
  return hn::Max(bound, x);  // MAXPS returns its second operand if either is NaN
#else
  return hn::IfThenElse(hn::Lt(x, bound), bound, x);
#endif
}
template <class D, class V = hn::Vec<D>>
HWY_INLINE V LowerTo(D, V bound, V x) {
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
  return hn::Min(bound, x);
#else
  return hn::IfThenElse(hn::Gt(x, bound), bound, x);
#endif
}

// f32: exp(x) = 2^t, t = x log2(e). 2^t is a power of an integer times one of the rest, for which
// there are minimax polynomials with an error of 2e-9. Below the smallest normal the result is 0,
// or subnormal if the processor does not flush those, above the largest +inf. kAtMostZero: x > 0
// occurs only next to a NaN in the same row, and may become any number.
template <bool kAtMostZero, class D, class V = hn::Vec<D>>
HWY_INLINE V ExpOfF32(D d, V x) {
  const V log2e = hn::Set(d, 1.44269504088896340736F);
#if HWY_TARGET <= HWY_AVX3
  if constexpr (hn::MaxLanes(d) == 16) {
    // VREDUCEPS computes t - floor(t), VSCALEFPS multiplies by 2^floor(t). The rounding of t is as
    // large as that of x, which is a difference of rounded numbers.
    constexpr float kUpToOne[6] = {0.6931470632553101F,    0.2402293086051941F,
                                   0.055485282093286514F,  0.009675451554358006F,
                                   0.0012467845808714628F, 0.00021612914861179888F};
    constexpr int kMinusFloor = 0x09;  // no fraction bits, rounded down, without exceptions
    const V t = hn::Mul(x, log2e);
    const V power = PowerOfTwo(d, V{_mm512_reduce_ps(t.raw, kMinusFloor)}, kUpToOne);
    const auto normal = _mm512_cmp_ps_mask(t.raw, _mm512_set1_ps(-126.0F), _CMP_NLT_UQ);
    return V{_mm512_maskz_scalef_ps(normal, power.raw, t.raw)};
  }
#endif
  constexpr float kUpToHalf[6] = {0.6931471824645996F,    0.24022647738456726F,
                                  0.055503323674201965F,  0.00961843691766262F,
                                  0.0013398873852565885F, 0.00015353361959569156F};
  // At these bounds the power of two below is 0 and +inf. A NaN passes.
  x = RaiseTo(d, hn::Set(d, -88.05F), x);
  if constexpr (!kAtMostZero) x = LowerTo(d, hn::Set(d, 88.75F), x);
  // 1.5 * 2^23: adding it rounds to an integer, and the low bits of the sum are n + 127.
  const V magic = hn::Set(d, 12582912.0F + 127.0F);
  const V shifted = hn::MulAdd(x, log2e, magic);
  const V power = PowerOfTwo(d, hn::MulSub(x, log2e, hn::Sub(shifted, magic)), kUpToHalf);
  const hn::RebindToSigned<D> di;
  return hn::Mul(power, hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(di, shifted))));
}

// f64: exp(x) = 2^n * exp(r), n = round(x / ln 2), |r| <= ln(2)/2, exp(r) by its Taylor series to
// the rounding of the type (terms up to r^13/13!: 4e-18). ln 2 is split in two so that n * high is
// exact.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V ExpOfF64(D d, V x) {
  const V magic = hn::Set(d, 6755399441055744.0);  // 1.5 * 2^52
  const V shifted = hn::MulAdd(x, hn::Set(d, 1.44269504088896340736), magic);
  const V n = hn::Sub(shifted, magic);
  const V high = hn::Set(d, 6.93147180369123816490e-01);
  const V low = hn::Set(d, 1.90821492927058770002e-10);
  const V r = hn::NegMulAdd(n, low, hn::NegMulAdd(n, high, x));
  V series = hn::Set(d, 1.0 / 6227020800.0);
  for (const double inverse_factorial :
       {1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040,
        1.0 / 720, 1.0 / 120, 1.0 / 24, 1.0 / 6, 0.5, 1.0, 1.0}) {
    series = hn::MulAdd(series, r, hn::Set(d, inverse_factorial));
  }
  const hn::RebindToSigned<D> di;
  const auto exponent =
      hn::Add(hn::ShiftLeft<52>(hn::BitCast(di, shifted)), hn::BitCast(di, hn::Set(d, 1.0)));
  V y = hn::Mul(series, hn::BitCast(d, exponent));
  y = hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -708.39)), y);
  return hn::IfThenElse(hn::Gt(x, hn::Set(d, 709.43)),
                        hn::Set(d, std::numeric_limits<double>::infinity()), y);
}

// exp(x); NaN stays NaN.
template <bool kAtMostZero = false, class D, class V = hn::Vec<D>>
HWY_INLINE V ExpKeepNan(D d, V x) {
  if constexpr (sizeof(hn::TFromD<D>) == 4) {
    return ExpOfF32<kAtMostZero>(d, x);
  } else {
    return ExpOfF64(d, x);
  }
}

// n / d for d > 0 that is neither tiny nor huge. AVX-512 divides 16 f32 in 16 cycles, which would
// double the time of a row of bf16 scores. Its 14-bit reciprocal, refined once, is off by at most
// one rounding.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V DivideModerate(D d, V numerator, V denominator) {
#if HWY_TARGET <= HWY_AVX3
  if constexpr (sizeof(hn::TFromD<D>) == 4) {
    const V reciprocal = hn::ApproximateReciprocal(denominator);
    const V quotient = hn::Mul(numerator, reciprocal);
    return hn::MulAdd(hn::NegMulAdd(quotient, denominator, numerator), reciprocal, quotient);
  }
#endif
  (void)d;
  return hn::Div(numerator, denominator);
}

// tanh. f32: |x| P(x^2) / Q(x^2) with P and Q of degree 4. The relative error is at most 2.3e-8 up
// to 9.1, where tanh rounds to 1 (minimax by reweighted least squares), and at most 3.2e-7 with f32
// rounding (measured on 2.2 million arguments). All coefficients are positive, so nothing cancels.
// f64: Highway's tanh.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V TanhKeepNan(D d, V x) {
  using T = hn::TFromD<D>;
  V y;
  if constexpr (sizeof(T) == 4) {
    const V size = hn::Min(hn::Abs(x), hn::Set(d, T(9.1)));
    const V square = hn::Mul(size, size);
    V p = hn::Set(d, T(1.3177465600454402e-08));
    p = hn::MulAdd(p, square, hn::Set(d, T(2.0481143534823583e-05)));
    p = hn::MulAdd(p, square, hn::Set(d, T(3.4878083534863585e-03)));
    p = hn::MulAdd(p, square, hn::Set(d, T(1.3374472901660636e-01)));
    p = hn::MulAdd(p, square, hn::Set(d, T(1.0)));
    V q = hn::Set(d, T(7.704022193415791e-07));
    q = hn::MulAdd(q, square, hn::Set(d, T(3.2729158253192554e-04)));
    q = hn::MulAdd(q, square, hn::Set(d, T(2.5847378269825624e-02)));
    q = hn::MulAdd(q, square, hn::Set(d, T(4.670778668068618e-01)));
    q = hn::MulAdd(q, square, hn::Set(d, T(1.0)));
    y = hn::Min(DivideModerate(d, hn::Mul(size, p), q), hn::Set(d, T(1.0)));
    y = hn::CopySign(y, x);
  } else {
    y = hn::Tanh(d, x);
  }
  return hn::IfThenElse(hn::Eq(x, x), y, x);
}

struct Sum {
  template <class V>
  HWY_INLINE V operator()(V a, V b) const {
    return hn::Add(a, b);
  }
};
struct Larger {
  template <class V>
  HWY_INLINE V operator()(V a, V b) const {
    return hn::Max(a, b);
  }
};

#if HWY_TARGET != HWY_SCALAR
// Joins the 128-bit blocks of v.
template <class Join, class D, class V = hn::Vec<D>>
HWY_INLINE auto JoinBlocks(D d, V v) {
  if constexpr (hn::MaxLanes(d) * sizeof(hn::TFromD<D>) <= 16) {
    return v;
  } else {
    const hn::Half<D> half;
    return JoinBlocks<Join>(half, Join()(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
}
#endif

// out[n] = the sum (Sum) or maximum (Larger) of the lanes of v[n], for four vectors: about 14
// instructions instead of 40. The order of sums is the same for each of them.
inline constexpr int kRowsAtOnce = 4;
template <class Join, class D, class V = hn::Vec<D>, class T = hn::TFromD<D>>
HWY_INLINE void ReduceRows(D d, const V* v, T* HWY_RESTRICT out) {
#if HWY_TARGET != HWY_SCALAR
  if constexpr (sizeof(T) == 4) {
    constexpr Join join;
    const hn::Repartition<double, D> wide;
    const auto of01 = hn::BitCast(
        wide, join(hn::InterleaveLower(d, v[0], v[1]), hn::InterleaveUpper(d, v[0], v[1])));
    const auto of23 = hn::BitCast(
        wide, join(hn::InterleaveLower(d, v[2], v[3]), hn::InterleaveUpper(d, v[2], v[3])));
    // Each 128-bit block holds the four results over its own lanes.
    const auto all = join(hn::BitCast(d, hn::InterleaveLower(wide, of01, of23)),
                          hn::BitCast(d, hn::InterleaveUpper(wide, of01, of23)));
    hn::Store(JoinBlocks<Join>(d, all), hn::FixedTag<T, 4>(), out);
    return;
  }
#endif
  for (int n = 0; n < kRowsAtOnce; ++n) {
    if constexpr (std::is_same_v<Join, Sum>) {
      out[n] = hn::GetLane(hn::SumOfLanes(d, v[n]));
    } else {
      out[n] = hn::GetLane(hn::MaxOfLanes(d, v[n]));
    }
  }
}

}  // namespace attn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // ATTN_CPU_MATH_INL_H_
