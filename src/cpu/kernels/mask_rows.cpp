// Finds once per call which keys each row of the mask leaves visible. In causal, window, padding
// and document masks these are one run of keys per row. The kernels then use that range and do not
// read the mask again for each head and tile.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/kernels/mask_rows.cpp"
#include <hwy/foreach_target.h>
// foreach_target comes first.
#include <hwy/highway.h>

#include <bit>
#include <cstring>

#include "cpu/kernels/kernels.hpp"
#include "cpu/kernels/visible-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attn::cpu::HWY_NAMESPACE {
namespace {

constexpr std::int64_t kWord = 64;  // keys per word of bits

// Index of the first visible key (hidden, if not `kVisible`) from `begin` on; `count` if there is
// none. ahead: bytes to the next row, which is prefetched. Rows begin new pages, where hardware
// prefetchers start again.
template <bool kVisible>
std::int64_t FirstKey(const std::uint8_t* mask, std::int64_t begin, std::int64_t count,
                      std::int64_t ahead) {
  for (std::int64_t j = begin; j < count; j += kWord) {
    __builtin_prefetch(mask + ahead + j);
    const std::int64_t some = std::min(kWord, count - j);
    const std::uint64_t visible = BitsOfBytes(mask + j, some);
    const std::uint64_t bits = kVisible ? visible : ~visible & BitsBelow(some);
    if (bits != 0) return j + std::countr_zero(bits);
  }
  return count;
}

// One past the last visible key in [begin, count); `begin` if there is none.
std::int64_t PastLastKey(const std::uint8_t* mask, std::int64_t begin, std::int64_t count,
                         std::int64_t ahead) {
  for (std::int64_t end = count; end > begin; end -= kWord) {
    __builtin_prefetch(mask + ahead + end - 1);
    const std::int64_t some = std::min(kWord, end - begin);
    const std::uint64_t bits = BitsOfBytes(mask + end - some, some);
    if (bits != 0) return end - some + kWord - std::countl_zero(bits);
  }
  return begin;
}

MaskRow ScanRow(const std::uint8_t* mask, std::int64_t keys, std::int64_t ahead) {
  const std::int64_t first = FirstKey<true>(mask, 0, keys, ahead);
  const std::int64_t hidden = FirstKey<false>(mask, first, keys, ahead);
  const std::int64_t end = PastLastKey(mask, hidden, keys, ahead);
  return {static_cast<std::int32_t>(first),
          static_cast<std::int32_t>(end > hidden ? -1 - end : end)};
}

// Rows whose bits are packed together. A row has 8 bytes per 64 keys of a tile, so 8 rows fill
// whole cache lines.
constexpr std::int64_t kRowsAtOnce = 8;

// Packs `count` rows of the mask, which are rows of one head, tile after tile. `to`: the first
// row's word of tile 0.
void PackRows(const Call& call, const std::uint8_t* mask, std::int64_t count, std::uint32_t* to) {
  const MaskBits& bits = call.mask_bits;
  const std::int64_t keys = call.problem.len_kv;
  for (std::int64_t j0 = 0; j0 < keys; j0 += bits.tile_kv, to += bits.tile) {
    for (std::int64_t r = 0; r < count; ++r) {
      const std::uint8_t* row = mask + r * call.mask.stride_q;
      for (std::int64_t n = 0; n < bits.row; n += 2) {
        const std::int64_t j = j0 + n / 2 * kWord;
        // The next rows. Hardware prefetchers start again at each page.
        __builtin_prefetch(row + kRowsAtOnce * call.mask.stride_q + j);
        const std::int64_t some = std::min({kWord, j0 + bits.tile_kv - j, keys - j});
        const std::uint64_t words = some > 0 ? BitsOfBytes(row + j, some) : 0;
        std::memcpy(to + r * bits.row + n, &words, sizeof(words));
      }
    }
  }
}

}  // namespace

void ScanMask(const Call& call, std::int64_t begin, std::int64_t end) {
  const Problem& p = call.problem;
  const std::int64_t queries = p.mask.q ? p.len_q : 1;
  const std::int64_t heads = p.mask.head ? p.heads_q : 1;
  while (begin < end) {
    const std::int64_t i = begin % queries;
    const std::int64_t of_head = begin / queries;
    const std::int64_t count = std::min({kRowsAtOnce, end - begin, queries - i});
    const auto* mask = reinterpret_cast<const std::uint8_t*>(
        call.mask.base + of_head / heads * call.mask.stride_batch +
        of_head % heads * call.mask.stride_head + i * call.mask.stride_q);
    bool holes = false;
    for (std::int64_t r = 0; r < count; ++r) {
      MaskRow& row = call.mask_rows[begin + r];
      row = ScanRow(mask + r * call.mask.stride_q, p.len_kv, call.mask.stride_q);
      holes = holes || row.holes();
    }
    if (holes && call.mask_bits.words != nullptr) {
      PackRows(call, mask, count,
               call.mask_bits.words + of_head * call.mask_bits.head + i * call.mask_bits.row);
    }
    begin += count;
  }
}

}  // namespace attn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attn::cpu {
HWY_EXPORT(ScanMask);

void scan_mask(const Call& call, std::int64_t begin, std::int64_t end) {
  HWY_DYNAMIC_DISPATCH(ScanMask)(call, begin, end);
}
}  // namespace attn::cpu
#endif
