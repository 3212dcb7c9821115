// The end of a row of the forward: the sink, lse, and o with one rounding.
#if defined(ATTN_CPU_FINISH_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTN_CPU_FINISH_ROWS_INL_H_
#undef ATTN_CPU_FINISH_ROWS_INL_H_
#else
#define ATTN_CPU_FINISH_ROWS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "cpu/kernels/kernels.hpp"
#include "cpu/kernels/score-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attn::cpu::HWY_NAMESPACE {

template <class T>
constexpr T kInfinity = std::numeric_limits<T>::infinity();

// Folds in the sink and stores lse of a row that has seen all its keys. Returns the factor of its
// o.
template <class T>
T EndRow(const Call& call, const Entry& entry, const TileRow& row, T row_max, T row_sum) {
  T lse = -kInfinity<T>;
  T inverse = T(0);
  if (row.i < entry.len_q) {
    T shift = row_max == -kInfinity<T> ? T(0) : row_max;
    T in_keys = T(1);  // exp(row_max - shift)
    T total = row_sum;
    if (call.sinks != nullptr) {
      const T sink = *reinterpret_cast<const T*>(call.sinks + row.head * call.sinks_stride);
      const T largest = sink > row_max ? sink : row_max;
      shift = largest == -kInfinity<T> ? T(0) : largest;
      in_keys = std::exp(row_max - shift);
      total = row_sum * in_keys + std::exp(sink - shift);
    }
    if (call.lse.given()) lse = total == T(0) ? -kInfinity<T> : shift + std::log(total);
    inverse = total == T(0) ? T(0) : in_keys / total;
  }
  if (call.lse.given()) {
    *reinterpret_cast<T*>(stat_address(call.lse, entry.b, entry.first_q, row.i, row.head)) = lse;
  }
  return inverse;
}

// The same, and normalizes o and stores it.
template <class T>
void FinishRow(const Call& call, const Entry& entry, const TileRow& row, T row_max, T row_sum,
               T* o) {
  const Problem& p = call.problem;
  ScaleRow(o, EndRow(call, entry, row, row_max, row_sum), padded<T>(p.dim_vo));
  const std::uint32_t replaced =
      StoreRow(p.out_type(), row_address(call, call.o, entry.b, entry.first_q, row.i, row.head), o,
               p.dim_vo, false, p.nonfinite_zero);
  count_nonfinite(call, replaced);
}

// The same for all rows of a tile, if their engine rounds o. Returns false if it does not.
inline bool FinishRounded(const Call& call, const Entry& entry, std::int64_t count,
                          const Bf16Engine& engine, float o_scale, const Scratch<float>& x) {
  const Problem& p = call.problem;
  if (engine.store_rows == nullptr || p.out_type() != DType::bf16 || p.nonfinite_zero) return false;
  constexpr std::int64_t kRows = 16;
  const std::int64_t vo = padded<float>(p.dim_vo);
  for (std::int64_t r0 = 0; r0 < count; r0 += kRows) {
    const std::int64_t some = std::min(kRows, count - r0);
    float factor[kRows];
    char* address[kRows];
    for (std::int64_t n = 0; n < some; ++n) {
      const TileRow& row = x.rows[r0 + n];
      factor[n] = o_scale * EndRow(call, entry, row, x.row_max[r0 + n], x.row_sum[r0 + n]);
      address[n] = row_address(call, call.o, entry.b, entry.first_q, row.i, row.head);
    }
    engine.store_rows(x.o + r0 * vo, vo, factor, some, p.dim_vo, address);
  }
  return true;
}

}  // namespace attn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // ATTN_CPU_FINISH_ROWS_INL_H_
