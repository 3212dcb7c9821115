// One step of the online softmax: scores of a strip of rows against a tile of keys become P.
#if defined(ATTN_CPU_SOFTMAX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTN_CPU_SOFTMAX_INL_H_
#undef ATTN_CPU_SOFTMAX_INL_H_
#else
#define ATTN_CPU_SOFTMAX_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>

#include "cpu/kernels/score-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attn::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The maximum over the lanes is the largest visible value; -inf if none is visible.
template <bool kHidden, class D, class V = hn::Vec<D>, class T = hn::TFromD<D>>
HWY_INLINE V RowMax(D d, const T* HWY_RESTRICT s, std::int64_t cols, const RowVisible* visible) {
  constexpr std::int64_t kLanes = hn::MaxLanes(d);
  const V least = hn::Set(d, -std::numeric_limits<T>::infinity());
  V largest = least;
  for (std::int64_t c = 0; c < cols; c += kLanes) {
    V value = hn::Load(d, s + c);
    if constexpr (kHidden) value = hn::IfThenElse(VisibleLanes(d, *visible, c), value, least);
    largest = hn::Max(largest, value);
  }
  return largest;
}

// s = exp(factor s - shift), 0 where hidden. The sum over the lanes of the result is the row sum.
// `shift` is the largest visible score, unless one is NaN, which makes the sum NaN.
template <bool kHidden, class D, class V = hn::Vec<D>, class T = hn::TFromD<D>>
HWY_INLINE V ExpRow(D d, T* HWY_RESTRICT s, T factor, T shift, std::int64_t cols,
                    const RowVisible* visible) {
  constexpr std::int64_t kLanes = hn::MaxLanes(d);
  V sum = hn::Zero(d);
  const V scale = hn::Set(d, factor);
  const V subtract = hn::Set(d, shift);
  for (std::int64_t c = 0; c < cols; c += kLanes) {
    V p = ExpKeepNan<true>(d, hn::MulSub(hn::Load(d, s + c), scale, subtract));
    if constexpr (kHidden) p = hn::IfThenElseZero(VisibleLanes(d, *visible, c), p);
    sum = hn::Add(sum, p);
    hn::Store(p, d, s + c);
  }
  return sum;
}

// Scores of consecutive rows, and the rows' state.
template <class T>
struct SoftmaxStrip {
  T* s;  // products; factor * s are the scores
  std::int64_t cols;
  T factor;
  T* row_max;
  T* row_sum;
  T* o;
  std::int64_t ldo;
};

// Takes the maximum of a tile into row r. Returns what is subtracted from the row's scores.
template <class T>
HWY_INLINE T UpdateMax(const SoftmaxStrip<T>& x, std::int64_t r, T tile_max) {
  constexpr T kNothing = -std::numeric_limits<T>::infinity();
  const hn::ScalableTag<T> d;
  T& row_max = x.row_max[r];
  const T largest = tile_max > row_max ? tile_max : row_max;
  // If nothing is visible yet, the shift is 0: exp(-inf - 0) = 0, and a NaN stays NaN.
  const T shift = largest == kNothing ? T(0) : largest;
  if (row_max == kNothing) {
    row_max = largest;  // o and row_sum are 0
  } else if (!(largest == row_max)) {
    const T rescale = hn::GetLane(ExpKeepNan(d, hn::Set(d, row_max - shift)));
    x.row_sum[r] *= rescale;
    ScaleRow(x.o + r * x.ldo, rescale, x.ldo);
    row_max = largest;
  }
  return shift;
}

// Rows [row0, row0 + kRows) together: a row alone would be a chain of dependent instructions, the
// maximum, its reduction, exp and the reduction of the sum. `visible`: with kHidden, of these rows.
template <int kRows, bool kHidden, class T>
HWY_INLINE void SoftmaxRows(const SoftmaxStrip<T>& x, std::int64_t row0,
                            const RowVisible* visible) {
  const hn::ScalableTag<T> d;
  using V = hn::Vec<decltype(d)>;
  const auto row = [&](int r) { return x.s + (row0 + r) * x.cols; };
  const auto seen = [&](int r) { return kHidden ? visible + r : nullptr; };
  V lanes[kRowsAtOnce];
  alignas(64) T reduced[kRowsAtOnce];
  for (int r = 0; r < kRowsAtOnce; ++r) {
    lanes[r] = r < kRows ? RowMax<kHidden>(d, row(r), x.cols, seen(r)) : lanes[0];
  }
  ReduceRows<Larger>(d, lanes, reduced);
  T shift[kRows];
  for (int r = 0; r < kRows; ++r) shift[r] = UpdateMax(x, row0 + r, x.factor * reduced[r]);
  for (int r = 0; r < kRowsAtOnce; ++r) {
    lanes[r] =
        r < kRows ? ExpRow<kHidden>(d, row(r), x.factor, shift[r], x.cols, seen(r)) : lanes[0];
  }
  ReduceRows<Sum>(d, lanes, reduced);
  for (int r = 0; r < kRows; ++r) x.row_sum[row0 + r] += reduced[r];
}

// Rows [row0, row0 + count), at most kRowsAtOnce. `visible`: of these rows; null if they see all
// columns. Sets the bits of rows that see all columns if another row does not.
template <class T>
HWY_INLINE void Softmax(const SoftmaxStrip<T>& x, std::int64_t row0, std::int64_t count,
                        RowVisible* visible) {
  if (visible == nullptr) {
    switch (count) {
      case 4: return SoftmaxRows<4, false>(x, row0, visible);
      case 3: return SoftmaxRows<3, false>(x, row0, visible);
      case 2: return SoftmaxRows<2, false>(x, row0, visible);
      default: return SoftmaxRows<1, false>(x, row0, visible);
    }
  }
  for (std::int64_t r = 0; r < count; ++r) {
    if (visible[r].all)
      std::fill(std::begin(visible[r].bits), std::end(visible[r].bits), ~std::uint64_t{0});
  }
  switch (count) {
    case 4: return SoftmaxRows<4, true>(x, row0, visible);
    case 3: return SoftmaxRows<3, true>(x, row0, visible);
    case 2: return SoftmaxRows<2, true>(x, row0, visible);
    default: return SoftmaxRows<1, true>(x, row0, visible);
  }
}

}  // namespace attn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // ATTN_CPU_SOFTMAX_INL_H_
