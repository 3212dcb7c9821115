// Finds once per call which keys each row of the mask leaves visible. In causal, window, padding
// and document masks these are one run of keys per row. The kernels then use that range and do not
// read the mask again for each head and tile.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/kernels/mask_rows.cpp"
#include <hwy/foreach_target.h>
// foreach_target comes first.
#include <hwy/highway.h>

#include <bit>

#include "cpu/kernels/kernels.hpp"
#include "cpu/kernels/visible-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attn::cpu::HWY_NAMESPACE {
namespace {

constexpr std::int64_t kWord = 64;  // keys per word of bits

// Index of the first visible key (hidden, if not `kVisible`) from `begin` on; `count` if there is
// none.
template <bool kVisible>
std::int64_t FirstKey(const std::uint8_t* mask, std::int64_t begin, std::int64_t count) {
  for (std::int64_t j = begin; j < count; j += kWord) {
    const std::int64_t some = std::min(kWord, count - j);
    const std::uint64_t visible = BitsOfBytes(mask + j, some);
    const std::uint64_t bits = kVisible ? visible : ~visible & BitsBelow(some);
    if (bits != 0) return j + std::countr_zero(bits);
  }
  return count;
}

// One past the last visible key in [begin, count); `begin` if there is none.
std::int64_t PastLastKey(const std::uint8_t* mask, std::int64_t begin, std::int64_t count) {
  for (std::int64_t end = count; end > begin; end -= kWord) {
    const std::int64_t some = std::min(kWord, end - begin);
    const std::uint64_t bits = BitsOfBytes(mask + end - some, some);
    if (bits != 0) return end - some + kWord - std::countl_zero(bits);
  }
  return begin;
}

}  // namespace

void ScanMask(const Call& call, std::int64_t begin, std::int64_t end) {
  const Problem& p = call.problem;
  const std::int64_t queries = p.mask.q ? p.len_q : 1;
  const std::int64_t heads = p.mask.head ? p.heads_q : 1;
  for (std::int64_t n = begin; n < end; ++n) {
    const std::int64_t at = n / (queries * heads) * call.mask.stride_batch +
                            n / queries % heads * call.mask.stride_head +
                            n % queries * call.mask.stride_q;
    const auto* mask = reinterpret_cast<const std::uint8_t*>(call.mask.base + at);
    const std::int64_t first = FirstKey<true>(mask, 0, p.len_kv);
    const std::int64_t hidden = FirstKey<false>(mask, first, p.len_kv);
    const std::int64_t end = PastLastKey(mask, hidden, p.len_kv);
    call.mask_rows[n] = {static_cast<std::int32_t>(first),
                         static_cast<std::int32_t>(end > hidden ? -1 - end : end)};
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
