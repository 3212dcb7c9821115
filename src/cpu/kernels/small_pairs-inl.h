// The pairs of a task of a small problem: which keys their queries see, their order and what is
// prefetched meanwhile.
#if defined(ATTN_CPU_SMALL_PAIRS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTN_CPU_SMALL_PAIRS_INL_H_
#undef ATTN_CPU_SMALL_PAIRS_INL_H_
#else
#define ATTN_CPU_SMALL_PAIRS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>

#include "cpu/host/small_scratch.hpp"
#include "cpu/kernels/small_rows.hpp"

HWY_BEFORE_NAMESPACE();
namespace attn::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The keys that each query of a sequence sees.
struct SmallRanges {
  alignas(64) std::int32_t begin[kMostSmallLen];
  alignas(64) std::int32_t end[kMostSmallLen];
  bool hidden = false;  // some query does not see all keys
  bool empty = false;   // some query sees no key

  void Find(const Call& call, const Entry& entry) {
    const Problem& p = call.problem;
    hidden = empty = entry.len_kv == 0;
    const bool all = !p.causal && !p.window_left && !p.window_right && !p.kv_begin && !p.kv_end;
    std::fill_n(begin, kMostSmallLen, 0);
    std::fill_n(end, kMostSmallLen, static_cast<std::int32_t>(entry.len_kv));
    for (std::int64_t i = 0; !all && i < entry.len_q; ++i) {
      const core::KeyRange keys = keys_of(call, entry, i);
      begin[i] = static_cast<std::int32_t>(keys.begin);
      end[i] = static_cast<std::int32_t>(keys.end);
      hidden |= keys.begin > 0 || keys.end < entry.len_kv;
      empty |= keys.empty();
    }
  }
  // Whether queries [i, i + lanes) see key j.
  template <class D>
  HWY_INLINE hn::Mask<D> Sees(D d, std::int64_t i, std::int64_t j) const {
    const hn::RebindToSigned<D> di;
    const auto key = hn::Set(di, static_cast<std::int32_t>(j));
    const auto before = hn::Lt(key, hn::Load(di, begin + i));
    return hn::RebindMask(d, hn::AndNot(before, hn::Lt(key, hn::Load(di, end + i))));
  }
};

// Key heads that are prefetched together while as many others are computed. If the heads of a row
// are adjacent in memory, rows are prefetched in runs of 512 bytes. One head alone would be runs of
// 128 bytes at dim 32, and the processor's own prefetches would compete with these.
inline std::int64_t small_group(const Call& call) {
  constexpr std::int64_t kRun = 512;
  const std::int64_t bytes = call.problem.dim_qk * std::int64_t{sizeof(float)};
  if (call.k.stride_head != bytes) return 1;
  return std::clamp<std::int64_t>(kRun / bytes, 1, call.problem.heads_kv);
}

inline void AddKeysAhead(const Call& call, const StridedTensor& rows, const Entry& entry,
                         std::int64_t head_kv, std::int64_t heads, std::int64_t dim,
                         SmallAhead& ahead) {
  if (rows.given()) ahead.add(SmallKeys(call, rows, entry, head_kv, dim), rows.stride_head, heads);
}
inline void AddQueriesAhead(const Call& call, const StridedTensor& rows, const Entry& entry,
                            std::int64_t head_kv, std::int64_t heads, std::int64_t dim,
                            SmallAhead& ahead) {
  const std::int64_t group = call.numbers.heads_per_kv;
  if (!rows.given()) return;
  ahead.add(SmallQueries(call, rows, entry, head_kv * group, dim), rows.stride_head, heads * group);
}

// Calls compute(entry, ranges, head_kv, ahead) for the pairs of a task. add(ahead, entry, head_kv,
// heads) adds what a group of heads reads and writes.
template <class Add, class Compute>
void EachSmallPair(const Call& call, const Config& config, std::int64_t task, Add&& add,
                   Compute&& compute) {
  const std::int64_t heads = call.problem.heads_kv;
  const std::int64_t begin = task * config.pairs_of_task;
  const std::int64_t end = std::min(begin + config.pairs_of_task, call.problem.batch * heads);
  const std::int64_t group = small_group(call);
  SmallAhead ahead;
  SmallRanges ranges;
  Entry entry;
  for (std::int64_t n = begin; n < end; ++n) {
    if (core::interrupted(call.interrupt)) return;
    const std::int64_t head = n % heads;
    if (n == begin || head == 0) {
      entry = entry_of(call, n / heads);
      ranges.Find(call, entry);
    }
    if (n == begin || head % group == 0) {
      const std::int64_t next = n - head + std::min(head / group * group + group, heads);
      const std::int64_t first = next % heads;
      ahead.clear();
      if (next < end) {
        add(ahead, entry_of(call, next / heads), first,
            std::min({group, heads - first, end - next}));
      }
    }
    compute(entry, ranges, head, ahead);
  }
}

}  // namespace attn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // ATTN_CPU_SMALL_PAIRS_INL_H_
