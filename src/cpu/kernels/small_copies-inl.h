// Rows of small problems that products can't read or write in place: other types than f32, and
// dims that are not full vectors. They are converted in scratch memory, and each result is rounded
// once.
#if defined(ATTN_CPU_SMALL_COPIES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTN_CPU_SMALL_COPIES_INL_H_
#undef ATTN_CPU_SMALL_COPIES_INL_H_
#else
#define ATTN_CPU_SMALL_COPIES_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>
#include <cstring>

#include "core/element_size.hpp"
#include "cpu/host/small_scratch.hpp"
#include "cpu/kernels/rows-inl.h"
#include "cpu/kernels/small_rows.hpp"

HWY_BEFORE_NAMESPACE();
namespace attn::cpu::HWY_NAMESPACE {

inline bool InPlace(const CallerRows& rows) {
  return rows.dtype == DType::f32 && rows.dim % kSmallDimStep == 0;
}
// Where the product computes `rows`: in place or in `copy`.
inline SmallRows RowsToWrite(const CallerRows& rows, float* copy) {
  const std::int64_t dim = small_dim(rows.dim);
  if (!InPlace(rows)) return {copy, dim, rows.count, dim};
  return {reinterpret_cast<float*>(rows.first), rows.stride / std::int64_t{sizeof(float)},
          rows.count, dim};
}

template <DType kType>
HWY_NOINLINE void CopyFullRows(const CallerRows& rows, float* HWY_RESTRICT copy) {
  for (std::int64_t r = 0; r < rows.count; ++r) {
    LoadVectors<kType>(rows.row(r), rows.dim, copy + r * rows.dim);
  }
}
// The rows in f32: in place or in `copy`.
inline SmallRows ReadRows(const CallerRows& rows, float* copy) {
  const SmallRows to = RowsToWrite(rows, copy);
  if (to.first != copy) return to;
  if (rows.dim == to.dim && rows.dtype == DType::bf16) {
    CopyFullRows<DType::bf16>(rows, copy);
    return to;
  }
  if constexpr (loads_as_vectors<float>(DType::f16)) {
    if (rows.dim == to.dim && rows.dtype == DType::f16) {
      CopyFullRows<DType::f16>(rows, copy);
      return to;
    }
  }
  for (std::int64_t r = 0; r < rows.count; ++r) {
    LoadRow(rows.dtype, rows.row(r), rows.dim, to.dim, to.row(r));
  }
  return to;
}

// Rounds results that were not computed in place.
inline HWY_NOINLINE void RoundRows(const SmallRows& computed, const CallerRows& to) {
  if (InPlace(to)) return;
  for (std::int64_t r = 0; r < to.count; ++r) {
    StoreRow(to.dtype, to.row(r), computed.row(r), to.dim, false, false);
  }
}

// Writes 0 to rows [begin, end).
inline void ClearRows(const CallerRows& rows, std::int64_t begin, std::int64_t end) {
  const std::int64_t bytes = rows.dim * core::element_size(rows.dtype);
  for (std::int64_t r = begin; r < end; ++r) {
    std::memset(rows.row(r), 0, static_cast<std::size_t>(bytes));
  }
}

}  // namespace attn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // ATTN_CPU_SMALL_COPIES_INL_H_
