// Which pairs of a strip are visible: ranges of columns, minus those that mask and missing pages
// hide.
#if defined(ATTN_CPU_VISIBLE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTN_CPU_VISIBLE_INL_H_
#undef ATTN_CPU_VISIBLE_INL_H_
#else
#define ATTN_CPU_VISIBLE_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>

#include "cpu/host/config.hpp"
#include "cpu/kernels/tile.hpp"
#include "cpu/kernels/tile_ops/bf16_engine.hpp"

HWY_BEFORE_NAMESPACE();
namespace attn::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The keys that a strip is computed against: [j0, j0 + keys), from column `first` of the loaded
// tile. Rows of scores have `cols` columns, a multiple of the vector width. Columns past `keys` are
// hidden.
struct KeySpan {
  std::int64_t j0 = 0;
  std::int64_t keys = 0;
  std::int64_t cols = 0;
  std::int64_t first = 0;
  const std::uint8_t* missing = nullptr;  // [keys], not 0: no page; null: all have one
  bool all = false;                       // known: all rows see all columns
};

// The part of a loaded tile [j0, j0 + keys) that any row of the strip sees, extended to multiples
// of kStep (by default cache lines). `keys` is 0 if no row sees any. Columns outside of it are
// neither computed nor masked.
template <class T, std::int64_t kStep = static_cast<std::int64_t>(64 / sizeof(T))>
HWY_INLINE KeySpan SeenSpan(const TileRow* rows, std::int64_t count, std::int64_t j0,
                            std::int64_t keys) {
  const core::KeyRange seen = seen_by(rows, count, j0, j0 + keys);
  if (seen.empty()) return {};
  const std::int64_t first = (seen.begin - j0) / kStep * kStep;
  const std::int64_t width = seen.end - j0 - first;
  return {j0 + first, width, round_up(width, kStep), first, nullptr};
}

// The rows of a strip from the first to the last that sees any key of the span. The first is
// rounded down to a multiple of `step`, the rows that a product computes at a time. This skips rows
// where a strip spans two documents.
struct RowSpan {
  std::int64_t first = 0;
  std::int64_t count = 0;
};
HWY_INLINE RowSpan SeeingRows(const TileRow* rows, std::int64_t count, const KeySpan& span,
                              std::int64_t step) {
  const auto sees = [&](const TileRow& row) {
    return row.keys.begin < span.j0 + span.keys && row.keys.end > span.j0;
  };
  std::int64_t first = 0;
  while (first < count && !sees(rows[first])) ++first;
  while (count > first && !sees(rows[count - 1])) --count;
  first = first / step * step;
  return {first, count - first};
}

// The columns of the span that a row sees, before bias, mask and missing pages hide some.
HWY_INLINE core::KeyRange SeenColumns(const TileRow& row, const KeySpan& span) {
  const std::int64_t begin = std::clamp<std::int64_t>(row.keys.begin - span.j0, 0, span.cols);
  return {begin,
          std::clamp<std::int64_t>(std::min(row.keys.end - span.j0, span.keys), begin, span.cols)};
}

// Writes -inf to the columns outside of `seen`.
template <class T>
HWY_INLINE void HideOutside(core::KeyRange seen, std::int64_t cols, T* HWY_RESTRICT s) {
  constexpr T kHidden = -std::numeric_limits<T>::infinity();
  std::fill(s, s + seen.begin, kHidden);
  std::fill(s + seen.end, s + cols, kHidden);
}

// Writes -inf to the columns of [begin, end) whose byte is 0 (not 0, if kHiddenWhereSet).
template <bool kHiddenWhereSet, class T>
HWY_INLINE void HideByBytes(const std::uint8_t* HWY_RESTRICT bytes, std::int64_t begin,
                            std::int64_t end, T* HWY_RESTRICT s) {
  constexpr T kHidden = -std::numeric_limits<T>::infinity();
  std::int64_t c = begin;
#if HWY_TARGET != HWY_SCALAR
  if constexpr (sizeof(T) == 4) {
    const hn::ScalableTag<T> d;
    const hn::RebindToSigned<decltype(d)> d32;
    const hn::Rebind<std::uint8_t, decltype(d)> d8;
    constexpr std::int64_t kLanes = hn::MaxLanes(d);
    const auto hidden = hn::Set(d, kHidden);
    for (; c + kLanes <= end; c += kLanes) {
      const auto byte = hn::PromoteTo(d32, hn::LoadU(d8, bytes + c));
      const auto is_zero = hn::RebindMask(d, hn::Eq(byte, hn::Zero(d32)));
      const auto score = hn::LoadU(d, s + c);
      hn::StoreU(kHiddenWhereSet ? hn::IfThenElse(is_zero, score, hidden)
                                 : hn::IfThenElse(is_zero, hidden, score),
                 d, s + c);
    }
  }
#endif
  for (; c < end; ++c) s[c] = (bytes[c] != 0) == kHiddenWhereSet ? kHidden : s[c];
}

// What a row sees of a span: a range of columns, and pointers to what mask and missing pages hide.
HWY_INLINE SeenRow SeenOf(const Call& call, const TileRow& row, const KeySpan& span) {
  const core::KeyRange seen = SeenColumns(row, span);
  SeenRow of{seen.begin, seen.end, nullptr, span.missing};
  if (row.mask == nullptr || seen.empty()) return of;
  of.mask = reinterpret_cast<const std::uint8_t*>(row.mask + span.j0 * call.mask.stride_kv);
  if (call.mask.stride_kv != 0) return of;
  if (*of.mask == 0) of.end = of.begin;
  of.mask = nullptr;
  return of;
}

// Bit n is set if bytes[n] is not 0. `count` is at most 64.
HWY_INLINE std::uint64_t BitsOfBytes(const std::uint8_t* HWY_RESTRICT bytes, std::int64_t count) {
  std::uint64_t bits = 0;
#if HWY_TARGET == HWY_SCALAR
  for (std::int64_t n = 0; n < count; ++n) bits |= std::uint64_t{bytes[n] != 0} << n;
#else
  std::uint8_t padded[64];
  if (count < 64) {
    std::memset(padded, 0, sizeof(padded));
    std::memcpy(padded, bytes, static_cast<std::size_t>(count));
    bytes = padded;
  }
  const hn::CappedTag<std::uint8_t, 64> d;
  constexpr int kLanes = static_cast<int>(hn::MaxLanes(d));
  std::uint8_t words[8];
  for (int n = 0; n < 64; n += kLanes) {
    hn::StoreMaskBits(d, hn::Ne(hn::LoadU(d, bytes + n), hn::Zero(d)), words + n / 8);
  }
  std::memcpy(&bits, words, sizeof(bits));
#endif
  return bits;
}

HWY_INLINE std::uint64_t BitsBelow(std::int64_t n) {
  if (n >= 64) return ~std::uint64_t{0};
  return n <= 0 ? 0 : (std::uint64_t{1} << n) - 1;
}

// The visible columns of [c, c + 64), one bit each.
HWY_INLINE std::uint64_t VisibleBits(const SeenRow& row, std::int64_t c) {
  std::uint64_t seen = BitsBelow(row.end - c) & ~BitsBelow(row.begin - c);
  const std::int64_t count = std::min<std::int64_t>(row.end - c, 64);
  if (row.mask != nullptr && seen != 0) seen &= BitsOfBytes(row.mask + c, count);
  if (row.missing != nullptr && seen != 0) seen &= ~BitsOfBytes(row.missing + c, count);
  return seen;
}

// One bit per column of a row, set if it is visible.
struct RowVisible {
  std::uint64_t bits[kMaxTileKv / 64];
  bool all = true;
};
HWY_INLINE void FindRowVisible(const Call& call, const TileRow& row, const KeySpan& span,
                               RowVisible& to) {
  const SeenRow seen = SeenOf(call, row, span);
  to.all =
      seen.mask == nullptr && seen.missing == nullptr && seen.begin == 0 && seen.end == span.cols;
  if (to.all) return;
  std::uint64_t hidden = 0;
  for (std::int64_t c = 0; c < span.cols; c += 64) {
    const std::uint64_t bits = VisibleBits(seen, c);
    to.bits[c / 64] = bits;
    hidden |= ~bits & BitsBelow(span.cols - c);
  }
  to.all = hidden == 0;
}

// The bits of columns [c, c + lanes) as a vector mask.
template <class D>
HWY_INLINE hn::Mask<D> VisibleLanes(D d, const RowVisible& visible, std::int64_t c) {
  // Little-endian: bit n is in byte n / 8.
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(visible.bits) + c / 8;
  if constexpr (hn::MaxLanes(d) >= 8) {
    return hn::LoadMaskBits(d, bytes);
  } else {
    const std::uint8_t few[8] = {static_cast<std::uint8_t>(*bytes >> (c % 8))};
    return hn::LoadMaskBits(d, few);
  }
}

// Whether the mask leaves the strip any key of the span. If it does, the first row mostly shows it.
inline HWY_NOINLINE bool MaskLeavesAny(const Call& call, const TileRow* rows, std::int64_t count,
                                       const KeySpan& span) {
  if (!call.mask.given()) return true;
  for (std::int64_t r = 0; r < count; ++r) {
    const SeenRow seen = SeenOf(call, rows[r], span);
    if (seen.begin < seen.end && seen.mask == nullptr) return true;
    for (std::int64_t c = 0; c < seen.end; c += 64) {
      if (VisibleBits(seen, c) != 0) return true;
    }
  }
  return false;
}

// Writes -inf to all columns that the row does not see: by ranges of keys, mask or missing pages.
template <class T>
HWY_INLINE void HideRow(const Call& call, const TileRow& row, const KeySpan& span,
                        T* HWY_RESTRICT s) {
  const SeenRow seen = SeenOf(call, row, span);
  if (seen.mask != nullptr) HideByBytes<false>(seen.mask, seen.begin, seen.end, s);
  if (seen.missing != nullptr) HideByBytes<true>(seen.missing, seen.begin, seen.end, s);
  HideOutside({seen.begin, seen.end}, span.cols, s);
}

// Whether all rows of a strip see all columns of the span.
inline bool SeesAll(const TileRow* rows, std::int64_t count, const KeySpan& span) {
  if (span.all && span.missing == nullptr) return true;
  bool all = span.missing == nullptr && span.keys == span.cols;
  for (std::int64_t r = 0; all && r < count; ++r) {
    all = rows[r].mask == nullptr && rows[r].keys.begin <= span.j0 &&
          rows[r].keys.end >= span.j0 + span.cols;
  }
  return all;
}

// The visible pairs of a strip, in the format of the bf16 engines. There are no words if all pairs
// are visible. `any`: whether the strip sees anything.
struct StripVisible {
  Bf16Visible visible;
  bool any = true;
};
inline HWY_NOINLINE StripVisible FindVisible(const Call& call, const Bf16Engine& engine,
                                             const TileRow* rows, std::int64_t count,
                                             const KeySpan& span, std::uint32_t* words) {
  if (SeesAll(rows, count, span)) return {};
  constexpr std::int64_t kRows = 16;
  SeenRow seen[kRows];
  const std::int64_t row_words = span.cols / kVisibleBits;
  StripVisible found{{words, row_words, 0, span.cols}, false};
  Bf16Visible& visible = found.visible;
  for (std::int64_t r = 0; r < count; r += kRows) {
    const std::int64_t some = std::min(kRows, count - r);
    for (std::int64_t n = 0; n < some; ++n) {
      seen[n] = SeenOf(call, rows[r + n], span);
      const bool holes = seen[n].mask != nullptr || seen[n].missing != nullptr;
      visible.full_begin = std::max(visible.full_begin, seen[n].begin);
      visible.full_end = holes ? 0 : std::min(visible.full_end, seen[n].end);
    }
    found.any = engine.find_visible(seen, some, span.cols, words + r * row_words) || found.any;
  }
  visible.full_begin = round_up(visible.full_begin, kVisibleBits);
  visible.full_end = visible.full_end / kVisibleBits * kVisibleBits;
  if (visible.full_begin >= visible.full_end) visible.full_begin = visible.full_end = 0;
  return found;
}

}  // namespace attn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // ATTN_CPU_VISIBLE_INL_H_
