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
  // The mask's words of the first row and the span's tile, if they alone determine what rows see.
  const std::uint32_t* mask_bits = nullptr;
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

// What a strip sees of all keys. Tasks of tiles find it once for all tiles of keys, so that most of
// these need no loop over the rows. Tasks with gemv find it for each tile: they have few rows.
struct StripKeys {
  core::KeyRange any;    // the smallest range with all keys that any row sees
  core::KeyRange every;  // keys that all rows see, unless they are holes of the mask
  bool holes = false;    // a row's mask has holes
  MaskRun mask;
};
HWY_INLINE StripKeys FindStripKeys(const Call& call, const TileRow* rows, std::int64_t count) {
  StripKeys keys;
  keys.any = seen_by(rows, count, 0, std::numeric_limits<std::int64_t>::max());
  keys.every = keys.any;
  for (std::int64_t r = 0; r < count; ++r) {
    keys.every.begin = std::max(keys.every.begin, rows[r].keys.begin);
    keys.every.end = std::min(keys.every.end, rows[r].keys.end);
    keys.holes = keys.holes || rows[r].mask != nullptr;
  }
  if (keys.holes) keys.mask = mask_run(call, rows, count);
  return keys;
}

// The words of a packed mask before those of the tile at j0.
HWY_INLINE std::int64_t MaskWordsBefore(const Call& call, std::int64_t j0) {
  const MaskBits& bits = call.mask_bits;
  return bits.words == nullptr ? 0 : j0 / bits.tile_kv * bits.tile;
}

// The span of a loaded tile [j0, j0 + keys) for a strip. `find` loops over the rows.
template <class Find>
HWY_INLINE KeySpan SpanOfStrip(const StripKeys& of, std::int64_t step, std::int64_t j0,
                               std::int64_t keys, std::int64_t mask_words, const Find& find) {
  if (of.any.end <= j0 || of.any.begin >= j0 + keys) return {};
  KeySpan span;
  if (of.every.begin <= j0 && of.every.end >= j0 + keys) {
    span = {j0, keys, round_up(keys, step), 0, nullptr, !of.holes && keys % step == 0};
  } else {
    span = find();
  }
  const core::KeyRange& open = of.mask.unmasked;
  if (of.mask.bits != nullptr && open.begin <= span.j0 && open.end >= span.j0 + span.cols) {
    span.mask_bits = of.mask.bits + mask_words;
  }
  return span;
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

// The columns of the span that a row sees, before mask and missing pages hide some.
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

// Bits [first, first + 64) of a row's words; 0 past them.
HWY_INLINE std::uint64_t BitsFrom(const std::uint32_t* words, std::int64_t count,
                                  std::int64_t first) {
  const auto word = [&](std::int64_t n) { return n < count ? std::uint64_t{words[n]} : 0; };
  const std::int64_t at = first / kVisibleBits;
  const std::int64_t shift = first % kVisibleBits;
  const std::uint64_t bits = word(at) | word(at + 1) << kVisibleBits;
  return shift == 0 ? bits : bits >> shift | word(at + 2) << (64 - shift);
}

// The visible columns of [c, c + 64), one bit each.
HWY_INLINE std::uint64_t VisibleBits(const SeenRow& row, std::int64_t c) {
  std::uint64_t seen = BitsBelow(row.end - c) & ~BitsBelow(row.begin - c);
  const std::int64_t count = std::min<std::int64_t>(row.end - c, 64);
  if (row.mask != nullptr && seen != 0) seen &= BitsOfBytes(row.mask + c, count);
  if (row.missing != nullptr && seen != 0) seen &= ~BitsOfBytes(row.missing + c, count);
  return seen;
}

// The words of a row's packed mask in the span's tile; null if there are none.
HWY_INLINE const std::uint32_t* PackedRow(const Call& call, const TileRow& row,
                                          const KeySpan& span) {
  if (row.mask_bits == nullptr) return nullptr;
  return row.mask_bits + span.j0 / call.mask_bits.tile_kv * call.mask_bits.tile;
}

// VisibleBits() of a row, from its packed mask if it has one.
HWY_INLINE std::uint64_t VisibleBits(const Call& call, const TileRow& row, const KeySpan& span,
                                     SeenRow seen, std::int64_t c) {
  const std::uint32_t* packed = PackedRow(call, row, span);
  if (packed == nullptr) return VisibleBits(seen, c);
  seen.mask = nullptr;
  return VisibleBits(seen, c) & BitsFrom(packed, call.mask_bits.row, span.first + c);
}

// One bit per column of a row, set if it is visible.
struct RowVisible {
  std::uint64_t bits[kMaxTileKv / 64];
  bool all = true;
};
HWY_INLINE void FindRowVisible(const Call& call, const TileRow& row, const KeySpan& span,
                               RowVisible& to) {
  // The packed mask's words of a tile, where the mask alone determines what the row sees.
  const std::int64_t columns = call.mask_bits.row * kVisibleBits;
  if (row.mask_bits != nullptr && (columns == 64 || columns == 128) && span.first == 0 &&
      span.missing == nullptr && row.unmasked.begin <= span.j0 &&
      row.unmasked.end >= span.j0 + columns) {
    static_assert(sizeof(to.bits) == 16);
    const auto* words = PackedRow(call, row, span);
    std::memcpy(to.bits, words, 8);
    std::uint64_t visible = to.bits[0];
    if (columns == 128) {
      std::memcpy(to.bits + 1, words + 2, 8);
      visible &= to.bits[1];
    }
    to.all = visible == ~std::uint64_t{0};
    return;
  }
  const SeenRow seen = SeenOf(call, row, span);
  to.all =
      seen.mask == nullptr && seen.missing == nullptr && seen.begin == 0 && seen.end == span.cols;
  if (to.all) return;
  std::uint64_t hidden = 0;
  for (std::int64_t c = 0; c < span.cols; c += 64) {
    const std::uint64_t bits = VisibleBits(call, row, span, seen, c);
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
      if (VisibleBits(call, rows[r], span, seen, c) != 0) return true;
    }
  }
  return false;
}

// HideRow for a row with a packed mask.
template <class T>
HWY_INLINE void HideByBits(const Call& call, const TileRow& row, const KeySpan& span,
                           T* HWY_RESTRICT s) {
  const hn::ScalableTag<T> d;
  const auto hidden = hn::Set(d, -std::numeric_limits<T>::infinity());
  RowVisible visible;
  FindRowVisible(call, row, span, visible);
  for (std::int64_t c = 0; !visible.all && c < span.cols;
       c += static_cast<std::int64_t>(hn::MaxLanes(d))) {
    hn::Store(hn::IfThenElse(VisibleLanes(d, visible, c), hn::Load(d, s + c), hidden), d, s + c);
  }
}

// Writes -inf to all columns that the row does not see: by ranges of keys, mask or missing pages.
template <class T>
HWY_INLINE void HideRow(const Call& call, const TileRow& row, const KeySpan& span,
                        T* HWY_RESTRICT s) {
  if (row.mask_bits != nullptr) return HideByBits(call, row, span, s);
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
// The same from the words of a packed mask, which are not copied.
HWY_INLINE StripVisible PackedVisible(const Call& call, std::int64_t count, const KeySpan& span) {
  const std::int64_t row = call.problem.mask.q ? call.mask_bits.row : 0;
  const std::int64_t row_words = span.cols / kVisibleBits;
  const hn::ScalableTag<std::uint32_t> d;
  constexpr std::int64_t kLanes = hn::MaxLanes(d);
  const std::uint32_t* bits = span.mask_bits;
  const Bf16Visible visible{bits + span.first / kVisibleBits, row};
  if (row_words == row && count * row % kLanes == 0) {
    auto any = hn::Zero(d);
    auto all = hn::Set(d, ~std::uint32_t{0});
    for (std::int64_t n = 0; n < count * row; n += kLanes) {
      const auto words = hn::LoadU(d, bits + n);
      __builtin_prefetch(bits + count * row + n);  // the next strip's
      any = hn::Or(any, words);
      all = hn::And(all, words);
    }
    if (hn::AllTrue(d, hn::Eq(all, hn::Set(d, ~std::uint32_t{0})))) return {};
    return {visible, !hn::AllTrue(d, hn::Eq(any, hn::Zero(d)))};
  }
  std::uint32_t any = 0;
  std::uint32_t all = ~std::uint32_t{0};
  for (std::int64_t r = 0; r < count; ++r) {
    for (std::int64_t n = 0; n < row_words; ++n) {
      any |= visible.words[r * visible.row + n];
      all &= visible.words[r * visible.row + n];
    }
  }
  if (all == ~std::uint32_t{0}) return {};
  return {visible, any != 0};
}
inline HWY_NOINLINE StripVisible FindVisible(const Call& call, const Bf16Engine& engine,
                                             const TileRow* rows, std::int64_t count,
                                             const KeySpan& span, std::uint32_t* words) {
  if (span.mask_bits != nullptr) return PackedVisible(call, count, span);
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
