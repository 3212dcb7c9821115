// Products of a strip that sees a tile of keys partly, as at the ends of a window or on the causal
// diagonal: each group of kGemmRows rows is multiplied with the keys that it sees, and each group
// of kGemmRows keys with the rows that see it.
#if defined(ATTN_CPU_GEMM_PARTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTN_CPU_GEMM_PARTS_INL_H_
#undef ATTN_CPU_GEMM_PARTS_INL_H_
#else
#define ATTN_CPU_GEMM_PARTS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>

#include "cpu/kernels/gemm-inl.h"
#include "cpu/kernels/kernels.hpp"
#include "cpu/kernels/visible-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attn::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

inline constexpr std::int64_t kMostParts = kMostTileRows / kGemmRows + 1;
inline constexpr std::int64_t kMostKeyParts = kMaxTileKv / kGemmRows + 1;

// For groups of rows, the columns of the span that any of them sees; for groups of columns, the
// rows that see any of them.
struct SeenParts {
  core::KeyRange keys[kMostParts];
  core::KeyRange rows[kMostKeyParts];
};

// Returns false if all groups of rows see all keys of the span.
inline HWY_NOINLINE bool FindSeenParts(const TileRow* rows, std::int64_t count, const KeySpan& span,
                                       SeenParts& to) {
  bool partly = false;
  for (std::int64_t r = 0; r < count; r += kGemmRows) {
    core::KeyRange seen = seen_by(rows + r, std::min<std::int64_t>(kGemmRows, count - r), span.j0,
                                  span.j0 + span.keys);
    seen = seen.empty() ? core::KeyRange{0, 0}
                        : core::KeyRange{seen.begin - span.j0, seen.end - span.j0};
    partly = partly || seen.begin != 0 || seen.end != span.keys;
    to.keys[r / kGemmRows] = seen;
  }
  if (!partly) return false;
  for (std::int64_t j = 0; j < span.keys; j += kGemmRows) {
    const std::int64_t begin = span.j0 + j;
    const std::int64_t end = span.j0 + std::min<std::int64_t>(j + kGemmRows, span.keys);
    const auto sees = [&](const TileRow& row) {
      return row.keys.begin < end && row.keys.end > begin;
    };
    core::KeyRange seeing{0, count};
    while (seeing.begin < seeing.end && !sees(rows[seeing.begin])) ++seeing.begin;
    while (seeing.begin < seeing.end && !sees(rows[seeing.end - 1])) --seeing.end;
    to.rows[j / kGemmRows] = seeing;
  }
  return true;
}

// Columns that are computed for a group of rows: whole vectors.
template <class T>
HWY_INLINE core::KeyRange ColumnsOfPart(const core::KeyRange& keys) {
  constexpr std::int64_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
  if (keys.empty()) return {0, 0};
  return {keys.begin / kLanes * kLanes, round_up(keys.end, kLanes)};
}

template <class T>
HWY_INLINE void ClearOutside(const core::KeyRange& part, std::int64_t cols, T* values) {
  std::fill(values, values + part.begin, T(0));
  std::fill(values + part.end, values + cols, T(0));
}

template <class T>
HWY_INLINE GemmOperands<T> RowsOf(const GemmOperands<T>& op, std::int64_t row) {
  GemmOperands<T> some = op;
  some.a += row * op.a_row;
  some.c += row * op.ldc;
  some.rows = std::min<std::int64_t>(kGemmRows, op.rows - row);
  return some;
}

// C[rows x keys]: only the columns of each group of rows. Without parts, this and the functions
// below are Gemm().
template <class T>
HWY_INLINE void GemmOfSeenColumns(const GemmOperands<T>& op, const SeenParts* parts) {
  if (parts == nullptr) return Gemm<T>(op);
  for (std::int64_t row = 0; row < op.rows; row += kGemmRows) {
    const core::KeyRange part = ColumnsOfPart<T>(parts->keys[row / kGemmRows]);
    if (part.empty()) continue;
    GemmOperands<T> some = RowsOf(op, row);
    some.b += part.begin;
    some.c += part.begin;
    some.cols = part.end - part.begin;
    Gemm<T>(some);
  }
}

template <class T>
HWY_INLINE void GemmOfDepth(const GemmOperands<T>& op, const core::KeyRange* depths) {
  if (depths == nullptr) return Gemm<T>(op);
  for (std::int64_t row = 0; row < op.rows; row += kGemmRows) {
    const core::KeyRange part = depths[row / kGemmRows];
    if (part.empty()) continue;
    GemmOperands<T> some = RowsOf(op, row);
    some.a += part.begin * op.a_depth;
    some.b += part.begin * op.ldb;
    some.depth = part.end - part.begin;
    Gemm<T>(some);
  }
}

// C[rows x dim], depth: keys that a group of rows sees.
template <class T>
HWY_INLINE void GemmOfSeenKeys(const GemmOperands<T>& op, const SeenParts* parts) {
  GemmOfDepth(op, parts == nullptr ? nullptr : parts->keys);
}
// C[keys x dim], depth: rows that see a group of keys.
template <class T>
HWY_INLINE void GemmOfSeeingRows(const GemmOperands<T>& op, const SeenParts* parts) {
  GemmOfDepth(op, parts == nullptr ? nullptr : parts->rows);
}

}  // namespace attn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // ATTN_CPU_GEMM_PARTS_INL_H_
