// Turns a row of raw products into scores (docs/semantics.md, "Forward"). Each option is one short
// loop over a row in L1. An option that is off costs one branch per row.
#if defined(ATTN_CPU_SCORE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTN_CPU_SCORE_INL_H_
#undef ATTN_CPU_SCORE_INL_H_
#else
#define ATTN_CPU_SCORE_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>

#include "cpu/host/config.hpp"
#include "cpu/kernels/math-inl.h"
#include "cpu/kernels/rows-inl.h"
#include "cpu/kernels/tile.hpp"
#include "cpu/kernels/tile_ops/bf16_engine.hpp"
#include "cpu/kernels/visible-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attn::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Whether the softmax can take raw products and apply the scale itself. With a scale > 0 the
// largest product gives the largest score, and hidden pairs are -inf before the scale too.
inline bool softmax_takes_raw(const Call& call) {
  return call.numbers.scale > 0.0 && !(call.numbers.softcap > 0.0) && call.slopes == nullptr &&
         !call.bias.given();
}
// The same for a softmax that also applies softcap, which keeps the order of scores.
inline bool softmax_takes_capped(const Call& call) {
  return call.numbers.scale > 0.0 && call.slopes == nullptr && !call.bias.given();
}

// What a bf16 engine adds to scores itself, so that they are not another pass over memory. Other
// combinations of options are applied by ScoreRow.
inline Bf16Addend::Kind engine_addend(const Call& call, const Bf16Engine& engine) {
  using Kind = Bf16Addend::Kind;
  if (!engine.adds || call.numbers.softcap > 0.0) return Kind::none;
  if (call.slopes != nullptr) return call.bias.given() ? Kind::none : Kind::slope;
  if (!call.bias.given() || call.bias.stride_kv == 0) return Kind::none;
  if (call.bias.dtype == DType::bf16) return Kind::bias_bf16;
  return call.bias.dtype == DType::f32 ? Kind::bias_f32 : Kind::none;
}

// The pairs whose bias and mask are prefetched: keys [j0, j0 + keys), `rows_ahead` rows further.
struct NextScores {
  std::int64_t rows_ahead = 0;
  std::int64_t j0 = 0;
  std::int64_t keys = 0;
};

// Bytes from the bias of a strip's rows to that of the next tile; 0 if there is none, or if it is
// at another distance for some rows.
inline std::int64_t BiasAhead(const Call& call, const Entry& entry, const TileRow* rows,
                              std::int64_t count, const KeySpan& span, const NextScores& next) {
  const std::int64_t first = rows[0].i + next.rows_ahead;
  const std::int64_t last = rows[count - 1].i + next.rows_ahead;
  const bool inside = first >= 0 && last < entry.len_q && last - first == count - 1;
  if (!inside || next.keys <= 0 || call.bias.stride_q == 0) return 0;
  return next.rows_ahead * call.bias.stride_q + (next.j0 - span.j0) * call.bias.stride_kv;
}

// The numbers of an addend for the rows of a strip.
struct AddendRows {
  const char* bias[kMostBf16Rows];
  float slope[kMostBf16Rows];
  float distance[kMostBf16Rows];
};
inline HWY_NOINLINE Bf16Addend FindAddend(const Call& call, const Entry& entry,
                                          Bf16Addend::Kind kind, const TileRow* rows,
                                          std::int64_t count, const KeySpan& span,
                                          const NextScores& next, AddendRows& to) {
  using Kind = Bf16Addend::Kind;
  if (kind == Kind::none) return {};
  for (std::int64_t r = 0; r < round_up(count, 2); ++r) {
    // The engine reads the slots of two rows at a time. An odd count fills one more slot from the
    // last row, because rows[count] does not exist.
    const TileRow& row = rows[std::min(r, count - 1)];
    if (kind == Kind::slope) {
      to.slope[r] = *reinterpret_cast<const float*>(
          call.slopes + entry.b * call.slopes_stride_batch + row.head * call.slopes_stride_head);
      to.distance[r] = static_cast<float>(core::saturating_add(row.i - span.j0, entry.diag));
    } else {
      to.bias[r] = row.bias + span.j0 * call.bias.stride_kv;
    }
  }
  Bf16Addend of{kind, to.bias, to.slope, to.distance};
  if (kind != Kind::slope) of.ahead = BiasAhead(call, entry, rows, count, span, next);
  return of;
}

// Terms that are added to the products of a row.
template <class T>
struct Addend {
  const char* bias = nullptr;  // address of column 0
  DType dtype = DType::none;
  T constant = T(0);  // a bias that broadcasts over keys
  T slope = T(0);     // of ALiBi; `first`: distance of column 0
  T first = T(0);
};

// The bias of columns [c, c + lanes). Columns from `keys` on are outside of the bias and read as 0.
template <DType kType, class D, class T = hn::TFromD<D>>
HWY_INLINE hn::Vec<D> LoadBias(D d, const char* row, std::int64_t c, std::int64_t keys,
                               T* HWY_RESTRICT row_buffer) {
  constexpr std::int64_t kLanes = hn::MaxLanes(d);
  if (c + kLanes > keys) {
    LoadRow(kType, row + c * core::element_size(kType), std::max<std::int64_t>(keys - c, 0), kLanes,
            row_buffer);
    return hn::Load(d, row_buffer);
  }
  return LoadVector<kType>(d, row, c);
}

// s = scale s - slope |distance| + bias. One loop, so that the row is read and written once.
template <bool kSlope, DType kBias, class T>
HWY_INLINE void AddToRow(const Addend<T>& add, T factor, const KeySpan& span, T* HWY_RESTRICT s,
                         T* HWY_RESTRICT row_buffer) {
  const hn::ScalableTag<T> d;
  constexpr std::int64_t kLanes = hn::MaxLanes(d);
  const auto scale = hn::Set(d, factor);
  const auto negative_slope = hn::Set(d, -add.slope);
  const auto constant = hn::Set(d, add.constant);
  for (std::int64_t c = 0; c < span.cols; c += kLanes) {
    auto bias = constant;
    if constexpr (kBias != DType::none)
      bias = LoadBias<kBias>(d, add.bias, c, span.keys, row_buffer);
    auto score = hn::MulAdd(hn::Load(d, s + c), scale, bias);
    if constexpr (kSlope) {
      const auto distance = hn::Abs(hn::Sub(hn::Set(d, add.first), hn::Iota(d, static_cast<T>(c))));
      score = hn::MulAdd(distance, negative_slope, score);
    }
    hn::Store(score, d, s + c);
  }
}

template <bool kSlope, class T>
HWY_INLINE void AddToRow(const Addend<T>& add, T factor, const KeySpan& span, T* HWY_RESTRICT s,
                         T* HWY_RESTRICT row_buffer) {
  if (add.bias == nullptr) return AddToRow<kSlope, DType::none>(add, factor, span, s, row_buffer);
  if (add.dtype == kArithmetic<T>)
    return AddToRow<kSlope, kArithmetic<T>>(add, factor, span, s, row_buffer);
  if constexpr (sizeof(T) == 4) {
    if (add.dtype == DType::bf16) {
      return AddToRow<kSlope, DType::bf16>(add, factor, span, s, row_buffer);
    }
    if constexpr (loads_as_vectors<T>(DType::f16)) {
      if (add.dtype == DType::f16) {
        return AddToRow<kSlope, DType::f16>(add, factor, span, s, row_buffer);
      }
    }
  }
  LoadRow(add.dtype, add.bias, span.keys, span.cols, row_buffer);
  Addend<T> converted = add;
  converted.bias = reinterpret_cast<const char*>(row_buffer);
  converted.dtype = kArithmetic<T>;
  const KeySpan all{span.j0, span.cols, span.cols, span.first, nullptr};
  AddToRow<kSlope, kArithmetic<T>>(converted, factor, all, s, row_buffer);
}

// s = softcap tanh(scale s / softcap).
template <class T>
HWY_INLINE void CapRow(const Call& call, std::int64_t cols, T* HWY_RESTRICT s,
                       T* HWY_RESTRICT tanh) {
  const hn::ScalableTag<T> d;
  const auto scale = hn::Set(d, static_cast<T>(call.numbers.scale));
  const auto inverse_cap = hn::Set(d, static_cast<T>(1.0 / call.numbers.softcap));
  const auto cap = hn::Set(d, static_cast<T>(call.numbers.softcap));
  for (std::int64_t c = 0; c < cols; c += static_cast<std::int64_t>(hn::MaxLanes(d))) {
    const auto t = TanhKeepNan(d, hn::Mul(hn::Mul(hn::Load(d, s + c), scale), inverse_cap));
    if (tanh != nullptr) hn::Store(t, d, tanh + c);
    hn::Store(hn::Mul(t, cap), d, s + c);
  }
}

// Prefetches bias (unless without_bias) and mask of the next pairs. Their rows are kilobytes apart,
// a pattern that hardware prefetchers do not follow. Reduces an f32 forward with a bias [1, 12,
// 2048, 2048] from 161 to 118 ms.
inline void PrefetchScores(const Call& call, const Entry& entry, const TileRow& row,
                           const NextScores& next, bool without_bias = false) {
  const char* mask = row.mask_bits == nullptr ? row.mask : nullptr;
  if ((row.bias == nullptr || without_bias) && mask == nullptr) return;
  const std::int64_t i = row.i + next.rows_ahead;
  if (next.keys <= 0 || i < 0 || i >= entry.len_q) return;
  const auto prefetch = [&](const core::ScoreTensor& scores, const char* of_row) {
    if (of_row == nullptr || scores.stride_q == 0) return;
    const char* begin = of_row + next.rows_ahead * scores.stride_q + next.j0 * scores.stride_kv;
    prefetch_lines<false, 2>(begin, next.keys * scores.stride_kv);
  };
  if (!without_bias) prefetch(call.bias, row.bias);
  prefetch(call.mask, mask);
}

// s [cols]: raw products in, scores out. tanh: if not null, receives tanh(raw / softcap) for the
// gradient of softcap. row_buffer: scratch, [cols].
template <class T>
HWY_INLINE void ScoreRow(const Call& call, const Entry& entry, const TileRow& row,
                         const KeySpan& span, T* HWY_RESTRICT s, T* HWY_RESTRICT tanh,
                         T* HWY_RESTRICT row_buffer) {
  T factor = static_cast<T>(call.numbers.scale);
  if (call.numbers.softcap > 0.0) {
    CapRow(call, span.cols, s, tanh);
    factor = T(1);
  }
  Addend<T> add;
  if (call.bias.given()) {
    const char* bias = row.bias + span.j0 * call.bias.stride_kv;
    if (call.bias.stride_kv == 0) {
      add.constant = LoadElement<T>(call.bias.dtype, bias);
    } else {
      add.bias = bias;
      add.dtype = call.bias.dtype;
    }
  }
  if (call.slopes != nullptr) {
    add.slope = *reinterpret_cast<const T*>(call.slopes + entry.b * call.slopes_stride_batch +
                                            row.head * call.slopes_stride_head);
    add.first = static_cast<T>(core::saturating_add(row.i - span.j0, entry.diag));
    AddToRow<true>(add, factor, span, s, row_buffer);
  } else if (call.bias.given() || !(call.numbers.softcap > 0.0)) {
    AddToRow<false>(add, factor, span, s, row_buffer);
  }
  HideRow(call, row, span, s);
}

// values *= factor. cols is a multiple of the vector width.
template <class T>
HWY_INLINE void ScaleRow(T* HWY_RESTRICT values, T factor, std::int64_t cols) {
  const hn::ScalableTag<T> d;
  constexpr std::int64_t kLanes = hn::MaxLanes(d);
  const auto by = hn::Set(d, factor);
  for (std::int64_t c = 0; c < cols; c += kLanes) {
    hn::Store(hn::Mul(hn::Load(d, values + c), by), d, values + c);
  }
}

}  // namespace attn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // ATTN_CPU_SCORE_INL_H_
