// The score of a row of pairs: raw products in, scores out (docs/semantics.md, "Forward"). One
// short loop an option over a row that lies in L1; an option that is off costs a branch a row.
#if defined(ATTN_CPU_SCORE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTN_CPU_SCORE_INL_H_
#undef ATTN_CPU_SCORE_INL_H_
#else
#define ATTN_CPU_SCORE_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "cpu/host/config.hpp"
#include "cpu/kernels/math-inl.h"
#include "cpu/kernels/rows-inl.h"
#include "cpu/kernels/tile.hpp"

HWY_BEFORE_NAMESPACE();
namespace attn::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The keys that a strip is computed against: [j0, j0 + keys), which are columns first... of the
// loaded tile. Rows of scores are `cols` wide, whole vectors; columns past `keys` are hidden.
struct KeySpan {
  std::int64_t j0 = 0;
  std::int64_t keys = 0;
  std::int64_t cols = 0;
  std::int64_t first = 0;
  const std::uint8_t* missing = nullptr;  // [keys] non-zero: no page; null: all are there
};

// The part of a loaded tile [j0, j0 + keys) that any row of the strip sees, cut at multiples of
// kStep, by default whole cache lines; no keys when none does. What is left out is neither computed
// nor masked.
template <class T, std::int64_t kStep = static_cast<std::int64_t>(64 / sizeof(T))>
HWY_INLINE KeySpan SeenSpan(const TileRow* rows, std::int64_t count, std::int64_t j0,
                            std::int64_t keys) {
  const core::KeyRange seen = seen_by(rows, count, j0, j0 + keys);
  if (seen.empty()) return {};
  const std::int64_t first = (seen.begin - j0) / kStep * kStep;
  const std::int64_t width = seen.end - j0 - first;
  return {j0 + first, width, round_up(width, kStep), first, nullptr};
}

// The columns of the span that a row sees, but for what bias, mask and missing pages hide.
HWY_INLINE core::KeyRange SeenColumns(const TileRow& row, const KeySpan& span) {
  const std::int64_t begin = std::clamp<std::int64_t>(row.keys.begin - span.j0, 0, span.cols);
  return {begin,
          std::clamp<std::int64_t>(std::min(row.keys.end - span.j0, span.keys), begin, span.cols)};
}

// Hides the columns that a row doesn't see.
template <class T>
HWY_INLINE void HideOutside(core::KeyRange seen, std::int64_t cols, T* HWY_RESTRICT s) {
  constexpr T kHidden = -std::numeric_limits<T>::infinity();
  std::fill(s, s + seen.begin, kHidden);
  std::fill(s + seen.end, s + cols, kHidden);
}

// Whether a softmax that applies a scale > 0 by itself can take raw products: the largest belongs
// to the largest score, and what is hidden is -inf before the scale too.
inline bool softmax_takes_raw(const Call& call) {
  return call.numbers.scale > 0.0 && !(call.numbers.softcap > 0.0) && call.slopes == nullptr &&
         !call.bias.given() && !call.mask.given() && call.problem.page_size == 0;
}

// s: raw products, then scores, [cols]. tanh: where not null, tanh(raw / softcap), which the
// softcap's gradient needs. temp: [cols] of scratch.
template <class T>
HWY_INLINE void ScoreRow(const Call& call, const Entry& entry, const TileRow& row,
                         const KeySpan& span, T* HWY_RESTRICT s, T* HWY_RESTRICT tanh,
                         T* HWY_RESTRICT temp) {
  const hn::ScalableTag<T> d;
  constexpr std::int64_t kLanes = hn::MaxLanes(d);
  constexpr T kHidden = -std::numeric_limits<T>::infinity();
  const auto [begin, end] = SeenColumns(row, span);

  if (call.numbers.softcap > 0.0) {
    const auto scale = hn::Set(d, static_cast<T>(call.numbers.scale));
    const auto inverse_cap = hn::Set(d, static_cast<T>(1.0 / call.numbers.softcap));
    const auto cap = hn::Set(d, static_cast<T>(call.numbers.softcap));
    for (std::int64_t c = 0; c < span.cols; c += kLanes) {
      const auto t = TanhKeepNan(d, hn::Mul(hn::Mul(hn::Load(d, s + c), scale), inverse_cap));
      if (tanh != nullptr) hn::Store(t, d, tanh + c);
      hn::Store(hn::Mul(t, cap), d, s + c);
    }
  } else {
    const auto scale = hn::Set(d, static_cast<T>(call.numbers.scale));
    for (std::int64_t c = 0; c < span.cols; c += kLanes) {
      hn::Store(hn::Mul(hn::Load(d, s + c), scale), d, s + c);
    }
  }

  if (call.slopes != nullptr) {
    const T slope = *reinterpret_cast<const T*>(call.slopes + entry.b * call.slopes_stride_batch +
                                                row.head * call.slopes_stride_head);
    const auto negative_slope = hn::Set(d, -slope);
    const T first = static_cast<T>(core::saturating_add(row.i - span.j0, entry.diag));
    for (std::int64_t c = 0; c < span.cols; c += kLanes) {
      const auto distance = hn::Abs(hn::Sub(hn::Set(d, first), hn::Iota(d, static_cast<T>(c))));
      hn::Store(hn::MulAdd(distance, negative_slope, hn::Load(d, s + c)), d, s + c);
    }
  }

  if (call.bias.given() && begin < end) {
    const char* source = pair_address(call.bias, entry.b, row.head, row.i, span.j0 + begin);
    if (call.bias.stride_kv == 0) {
      const T value = LoadElement<T>(call.bias.dtype, source);
      for (std::int64_t c = begin; c < end; ++c) s[c] += value;
    } else {
      LoadRow(call.bias.dtype, source, end - begin, end - begin, temp);
      for (std::int64_t c = begin; c < end; ++c) s[c] += temp[c - begin];
    }
  }
  if (call.mask.given() && begin < end) {
    const auto* mask = reinterpret_cast<const std::uint8_t*>(
        pair_address(call.mask, entry.b, row.head, row.i, span.j0 + begin));
    const std::int64_t step = call.mask.stride_kv;
    for (std::int64_t c = begin; c < end; ++c) {
      s[c] = mask[(c - begin) * step] != 0 ? s[c] : kHidden;
    }
  }
  if (span.missing != nullptr) {
    for (std::int64_t c = begin; c < end; ++c) s[c] = span.missing[c] == 0 ? s[c] : kHidden;
  }
  HideOutside({begin, end}, span.cols, s);
}

template <class T>
HWY_INLINE T RowMax(const T* HWY_RESTRICT s, std::int64_t cols) {
  const hn::ScalableTag<T> d;
  constexpr std::int64_t kLanes = hn::MaxLanes(d);
  auto largest = hn::Load(d, s);
  for (std::int64_t c = kLanes; c < cols; c += kLanes) {
    largest = hn::Max(largest, hn::Load(d, s + c));
  }
  return hn::GetLane(hn::MaxOfLanes(d, largest));
}

// s = exp(s - shift); returns the sum.
template <class T>
HWY_INLINE T ExpRow(T* HWY_RESTRICT s, T shift, std::int64_t cols) {
  const hn::ScalableTag<T> d;
  constexpr std::int64_t kLanes = hn::MaxLanes(d);
  auto sum = hn::Zero(d);
  const auto subtract = hn::Set(d, shift);
  for (std::int64_t c = 0; c < cols; c += kLanes) {
    const auto p = ExpKeepNan(d, hn::Sub(hn::Load(d, s + c), subtract));
    sum = hn::Add(sum, p);
    hn::Store(p, d, s + c);
  }
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

// values *= factor over a row of whole vectors.
template <class T>
HWY_INLINE void ScaleRow(T* HWY_RESTRICT values, T factor, std::int64_t cols) {
  const hn::ScalableTag<T> d;
  constexpr std::int64_t kLanes = hn::MaxLanes(d);
  const auto by = hn::Set(d, factor);
  for (std::int64_t c = 0; c < cols; c += kLanes) {
    hn::Store(hn::Mul(hn::Load(d, values + c), by), d, values + c);
  }
}

template <class T>
HWY_INLINE void MultiplyRow(T* HWY_RESTRICT values, const T* HWY_RESTRICT factors,
                            std::int64_t cols) {
  const hn::ScalableTag<T> d;
  constexpr std::int64_t kLanes = hn::MaxLanes(d);
  for (std::int64_t c = 0; c < cols; c += kLanes) {
    hn::Store(hn::Mul(hn::Load(d, values + c), hn::Load(d, factors + c)), d, values + c);
  }
}

}  // namespace attn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // ATTN_CPU_SCORE_INL_H_
