// Steps that all phases of the backward share: load the rows of a strip, compute its score
// gradients, store a row of a gradient.
#if defined(ATTN_CPU_GRADIENT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTN_CPU_GRADIENT_INL_H_
#undef ATTN_CPU_GRADIENT_INL_H_
#else
#define ATTN_CPU_GRADIENT_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>
#include <limits>

#include "cpu/kernels/dropout-inl.h"
#include "cpu/kernels/gemm-inl.h"
#include "cpu/kernels/gemm_parts-inl.h"
#include "cpu/kernels/kernels.hpp"
#include "cpu/kernels/pair_ahead.hpp"
#include "cpu/kernels/row_prefetch.hpp"
#include "cpu/kernels/score-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attn::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class T>
HWY_INLINE T LoadStat(const core::StridedTensor& stats, const Entry& entry, const TileRow& row) {
  return *reinterpret_cast<const T*>(stat_address(stats, entry.b, entry.first_q, row.i, row.head));
}

template <DType kType, class D>
HWY_INLINE hn::Vec<D> DotVectors(D d, const char* a, const char* b, std::int64_t count) {
  auto sum = hn::Zero(d);
  for (std::int64_t c = 0; c < count; c += static_cast<std::int64_t>(hn::MaxLanes(d))) {
    sum = hn::MulAdd(LoadVector<kType>(d, a, c), LoadVector<kType>(d, b, c), sum);
  }
  return sum;
}

// sum(dout o) - dlse of a row that sees a key. dout, o: buffers of a row.
template <class T>
HWY_INLINE T DeltaOf(const Call& call, const Entry& entry, const TileRow& row, T* HWY_RESTRICT dout,
                     T* HWY_RESTRICT o) {
  const std::int64_t dim = call.problem.dim_vo;
  const std::int64_t vo = padded<T>(dim);
  const hn::ScalableTag<T> d;
  constexpr std::int64_t kLanes = hn::MaxLanes(d);
  const char* of_dout = row_address(call, call.dout, entry.b, entry.first_q, row.i, row.head);
  const char* of_o = row_address(call, call.o, entry.b, entry.first_q, row.i, row.head);
  auto sum = hn::Zero(d);
  const bool vectors = call.dout.dtype == call.o.dtype && dim % kLanes == 0;
  if (vectors && call.o.dtype == kArithmetic<T>) {
    sum = DotVectors<kArithmetic<T>>(d, of_dout, of_o, dim);
  } else if (vectors && loads_as_vectors<T>(DType::bf16) && call.o.dtype == DType::bf16) {
    if constexpr (loads_as_vectors<T>(DType::bf16)) {
      sum = DotVectors<DType::bf16>(d, of_dout, of_o, dim);
    }
  } else {
    LoadRow(call.dout.dtype, of_dout, dim, vo, dout);
    LoadRow(call.o.dtype, of_o, dim, vo, o);
    for (std::int64_t c = 0; c < vo; c += kLanes) {
      sum = hn::MulAdd(hn::Load(d, dout + c), hn::Load(d, o + c), sum);
    }
  }
  const T delta = hn::GetLane(hn::SumOfLanes(d, sum));
  return call.dlse.given() ? delta - LoadStat<T>(call.dlse, entry, row) : delta;
}

// Rows [row0, row0 + count) of a key head's group: lse, delta, and the addresses of q and dout. A
// row with lse = -inf sees no key. It has no gradient, whatever its dout and dlse contain, and its
// addresses are null. delta is 0 if row_sums does not compute it.
template <class T>
HWY_NOINLINE void FindRows(const Call& call, const Entry& entry, const RowSums<T>& sums,
                           std::int64_t head_kv, std::int64_t row0, std::int64_t count,
                           const Scratch<T>& x, const char** q, const char** dout) {
  make_rows(call, entry, head_kv, row0, count, x.rows);
  for (std::int64_t r = 0; r < count; ++r) {
    TileRow& row = x.rows[r];
    q[r] = nullptr;
    dout[r] = nullptr;
    x.lse[r] = T(0);
    x.delta[r] = T(0);
    if (row.keys.empty()) continue;
    const T lse = LoadStat<T>(call.lse, entry, row);
    if (lse == -std::numeric_limits<T>::infinity()) {
      row.keys = {0, 0};
      row.mask_bits = nullptr;
      continue;
    }
    x.lse[r] = lse;
    if (sums.delta != nullptr) x.delta[r] = sums.delta_of(call, entry, row.head, row.i);
    q[r] = row_address(call, call.q, entry.b, entry.first_q, row.i, row.head);
    dout[r] = row_address(call, call.dout, entry.b, entry.first_q, row.i, row.head);
  }
}

// The same, and loads q and dout converted to T.
template <class T>
HWY_NOINLINE void LoadRows(const Call& call, const Entry& entry, const RowSums<T>& sums,
                           std::int64_t head_kv, std::int64_t row0, std::int64_t count,
                           const Scratch<T>& x) {
  const Problem& p = call.problem;
  const std::int64_t qk = padded<T>(p.dim_qk);
  const std::int64_t vo = padded<T>(p.dim_vo);
  const char* q[kMostTileRows];
  const char* dout[kMostTileRows];
  FindRows(call, entry, sums, head_kv, row0, count, x, q, dout);
  for (std::int64_t r = 0; r < count; ++r) {
    LoadRow(call.q.dtype, q[r], p.dim_qk, qk, x.q + r * qk);
    LoadRow(call.dout.dtype, dout[r], p.dim_vo, vo, x.dout + r * vo);
    if (sums.delta == nullptr && dout[r] != nullptr) {
      x.delta[r] = DeltaOf(call, entry, x.rows[r], x.row_buffer, x.row_buffer + vo);
    }
  }
}

// Parameters of MakeGradientRow for one row of scores.
template <class T>
struct GradientRow {
  T scale;  // s * scale is the score
  T lse;
  T delta;
  const std::uint8_t* random = nullptr;  // null: no dropout
  bool of_raw = false;                   // multiply by the derivative of softcap
};

// Columns [first, cols). In: s = scores / scale, dp = dP. Out: s = dropout(P), dp = the score
// gradient.
template <bool kHidden, class T>
HWY_INLINE void MakeGradientRow(const Call& call, const GradientRow<T>& row, std::int64_t first,
                                std::int64_t cols, const RowVisible& visible,
                                const T* HWY_RESTRICT tanh, T* HWY_RESTRICT s, T* HWY_RESTRICT dp) {
  const hn::ScalableTag<T> d;
  constexpr std::int64_t kLanes = hn::MaxLanes(d);
  const auto factor = hn::Set(d, kept_factor<T>(call));
  const auto scale = hn::Set(d, row.scale);
  const auto lse = hn::Set(d, row.lse);
  const auto delta = hn::Set(d, row.delta);
  for (std::int64_t c = first; c < cols; c += kLanes) {
    auto prob = ExpKeepNan(d, hn::MulSub(hn::Load(d, s + c), scale, lse));
    if constexpr (kHidden) prob = hn::IfThenElseZero(VisibleLanes(d, visible, c), prob);
    auto dropped = prob;
    auto grad = hn::Load(d, dp + c);
    if (row.random != nullptr) {
      const auto kept = KeptLanes(d, row.random + c, call.numbers.dropout_threshold);
      dropped = hn::IfThenElseZero(kept, hn::Mul(prob, factor));
      grad = hn::IfThenElseZero(kept, hn::Mul(grad, factor));
    }
    grad = hn::Mul(prob, hn::Sub(grad, delta));
    if (row.of_raw) {
      const auto t = hn::Load(d, tanh + c);
      grad = hn::Mul(grad, hn::NegMulAdd(t, t, hn::Set(d, T(1))));
    }
    // A hidden pair has no gradient even where dP or its score is not finite.
    grad = hn::IfThenZeroElse(hn::Eq(prob, hn::Zero(d)), grad);
    hn::Store(dropped, d, s + c);
    hn::Store(grad, d, dp + c);
  }
}

// Computes a strip against a tile of keys with K^T and V^T loaded. x.s = dropout(P); x.dp = the
// gradient of the raw product, or of the score if `of_score`.
template <class T>
HWY_NOINLINE void GradientStrip(const Call& call, const Config& config, const Entry& entry,
                                const Scratch<T>& x, const KeySpan& span, std::int64_t row0,
                                std::int64_t count, bool of_score, const NextScores& next = {},
                                PairAhead* ahead = nullptr, RowPrefetch* rows_ahead = nullptr,
                                const SeenParts* parts = nullptr) {
  const Problem& p = call.problem;
  const std::int64_t qk = padded<T>(p.dim_qk);
  const std::int64_t vo = padded<T>(p.dim_vo);
  const std::int64_t cols = span.cols;
  const std::int64_t tile = config.tile_kv;
  GemmOfSeenColumns<T>(
      {x.q + row0 * qk, qk, 1, x.k_t + span.first, tile, x.s, cols, count, cols, p.dim_qk, false},
      parts);
  GemmOfSeenColumns<T>({x.dout + row0 * vo, vo, 1, x.v_t + span.first, tile, x.dp, cols, count,
                        cols, p.dim_vo, false},
                       parts);
  const std::uint8_t* random =
      p.dropout ? DropoutBytes(call, entry, x.rows + row0, count, span.j0, cols, x.random)
                : nullptr;
  const bool raw = softmax_takes_raw(call);
  RowVisible visible;
  for (std::int64_t r = 0; r < count; ++r) {
    const TileRow& row = x.rows[row0 + r];
    T* s = x.s + r * cols;
    T* dp = x.dp + r * cols;
    PrefetchScores(call, entry, row, next);
    if (ahead != nullptr) ahead->step();
    if (rows_ahead != nullptr) {
      // A strip of a window has about twice as many rows to prefetch as rows of scores.
      rows_ahead->step();
      rows_ahead->step();
    }
    if (raw) {
      FindRowVisible(call, row, span, visible);
    } else {
      ScoreRow<T>(call, entry, row, span, s, x.tanh, x.row_buffer);
    }
    const GradientRow<T> of{raw ? static_cast<T>(call.numbers.scale) : T(1), x.lse[row0 + r],
                            x.delta[row0 + r],
                            random == nullptr ? nullptr : random + r * kDropoutRow,
                            call.numbers.softcap > 0.0 && !of_score};
    core::KeyRange part{0, cols};
    if (parts != nullptr) {
      part = ColumnsOfPart<T>(parts->keys[r / kGemmRows]);
      ClearOutside(part, cols, s);
      ClearOutside(part, cols, dp);
    }
    if (visible.all) {
      MakeGradientRow<false>(call, of, part.begin, part.end, visible, x.tanh, s, dp);
    } else {
      MakeGradientRow<true>(call, of, part.begin, part.end, visible, x.tanh, s, dp);
    }
  }
}

// Loads K^T and V^T of keys [j0, j0 + keys) of a key head.
template <class T>
HWY_INLINE void LoadTransposed(const Call& call, const Config& config, const Entry& entry,
                               std::int64_t head_kv, const Scratch<T>& x, std::int64_t j0,
                               std::int64_t keys) {
  const Problem& p = call.problem;
  LoadKeyTileTransposed(call, call.k, entry, head_kv, j0, keys, config.tile_kv, p.dim_qk,
                        padded<T>(p.dim_qk), x.row_buffer, x.k_t);
  LoadKeyTileTransposed(call, call.v, entry, head_kv, j0, keys, config.tile_kv, p.dim_vo,
                        padded<T>(p.dim_vo), x.row_buffer, x.v_t);
}

// Whether rows of a gradient are scaled, rounded to bf16 and stored, and nothing else.
inline bool rounds_only(const Call& call, const StridedTensor& rows) {
  return rows.dtype == DType::bf16 && !rows.workspace && !call.problem.accumulate &&
         !call.problem.nonfinite_zero;
}

// Scales a row of dq, dk or dv, then writes or accumulates it and counts non-finite values. Padding
// becomes 0, or is unchanged when accumulating.
template <class T>
HWY_INLINE void StoreGradient(const Call& call, const StridedTensor& rows, char* address, T* values,
                              T factor, std::int64_t dim, bool inside) {
  const bool accumulate = call.problem.accumulate && !rows.workspace;
  const bool zero_nonfinite = call.problem.nonfinite_zero && !rows.workspace;
  if (!inside && accumulate) return;
  ScaleRow(values, inside ? factor : T(0), padded<T>(dim));
  count_nonfinite(call, StoreRow(rows.dtype, address, values, dim, accumulate, zero_nonfinite));
}

}  // namespace attn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // ATTN_CPU_GRADIENT_INL_H_
