// The pairs of a task of a small problem: which keys their queries see, their order and what is
// prefetched meanwhile.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/element_size.hpp"
#include "cpu/host/small_scratch.hpp"
#include "cpu/kernels/small_rows.hpp"

namespace attn::cpu {

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
};

// Key heads that are prefetched together while as many others are computed. If the heads of a row
// are adjacent in memory, rows are prefetched in runs of 512 bytes. One head alone would be runs of
// 128 bytes at dim 32 in f32, and the processor's own prefetches would compete with these.
inline std::int64_t small_group(const Call& call) {
  constexpr std::int64_t kRun = 512;
  const std::int64_t bytes = call.problem.dim_qk * core::element_size(call.k.dtype);
  if (call.k.stride_head != bytes) return 1;
  return std::clamp<std::int64_t>(kRun / bytes, 1, call.problem.heads_kv);
}

inline void AddKeysAhead(const Call& call, const StridedTensor& rows, const Entry& entry,
                         std::int64_t head_kv, std::int64_t heads, std::int64_t dim,
                         SmallAhead& ahead) {
  if (!rows.given()) return;
  ahead.add(rows, row_address(call, rows, entry.b, entry.first_kv, 0, head_kv), entry.len_kv,
            dim * core::element_size(rows.dtype), heads);
}
inline void AddQueriesAhead(const Call& call, const StridedTensor& rows, const Entry& entry,
                            std::int64_t head_kv, std::int64_t heads, std::int64_t dim,
                            SmallAhead& ahead) {
  if (!rows.given()) return;
  const std::int64_t group = call.numbers.heads_per_kv;
  ahead.add(rows, row_address(call, rows, entry.b, entry.first_q, 0, head_kv * group), entry.len_q,
            dim * core::element_size(rows.dtype), heads * group);
}
// What a forward reads and writes.
inline void AddForwardAhead(const Call& call, const Entry& entry, std::int64_t head_kv,
                            std::int64_t heads, SmallAhead& ahead) {
  const Problem& p = call.problem;
  AddKeysAhead(call, call.k, entry, head_kv, heads, p.dim_qk, ahead);
  AddKeysAhead(call, call.v, entry, head_kv, heads, p.dim_vo, ahead);
  AddQueriesAhead(call, call.q, entry, head_kv, heads, p.dim_qk, ahead);
  AddQueriesAhead(call, call.o, entry, head_kv, heads, p.dim_vo, ahead);
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

}  // namespace attn::cpu
