// Prefetches for tasks of several small (batch, key head) pairs. While one pair is computed, the
// rows of the next are brought into L2, and the lines that this one's results are written to.
// Without it, each pair waits for its first rows: they are kilobytes apart, and its loops are too
// short for prefetches a few rows ahead.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/divide_up.hpp"
#include "core/element_size.hpp"
#include "cpu/host/call.hpp"
#include "cpu/host/config.hpp"
#include "cpu/kernels/row_prefetch.hpp"

namespace attn::cpu {

class PairAhead {
 public:
  // Rows [0, count) of a head. More tensors than kMost are left out.
  void add(const StridedTensor& rows, std::int64_t b, std::int64_t first, std::int64_t head,
           std::int64_t count, std::int64_t dim) {
    if (!rows.given() || num_ == kMost || count <= 0) return;
    const std::int64_t at = rows.packed ? first * rows.stride_row : b * rows.stride_batch;
    streams_[num_++] = {rows.base + at + head * rows.stride_head, rows.stride_row,
                        dim * core::element_size(rows.dtype), count};
  }
  // The same for all query heads of a key head.
  void add_queries(const Call& call, const StridedTensor& rows, const Entry& entry,
                   std::int64_t head_kv, std::int64_t dim) {
    const std::int64_t heads = call.numbers.heads_per_kv;
    for (std::int64_t head = head_kv * heads; head < (head_kv + 1) * heads; ++head) {
      add(rows, entry.b, entry.first_q, head, entry.len_q, dim);
    }
  }
  void add_keys(const StridedTensor& rows, const Entry& entry, std::int64_t head_kv,
                std::int64_t dim) {
    add(rows, entry.b, entry.first_kv, head_kv, entry.len_kv, dim);
  }
  // Call after the last add(). `steps` calls of step() prefetch all rows.
  void spread(std::int64_t steps) {
    std::int64_t most = 0;
    for (int n = 0; n < num_; ++n) most = std::max(most, streams_[n].left);
    of_step_ = core::divide_up(most, std::max<std::int64_t>(steps, 1));
  }

  void step() {
    for (int n = 0; n < num_; ++n) {
      Stream& stream = streams_[n];
      const std::int64_t count = std::min(of_step_, stream.left);
      stream.left -= count;
      for (std::int64_t r = 0; r < count; ++r, stream.row += stream.stride) {
        prefetch_lines<false, 2>(stream.row, stream.bytes);
      }
    }
  }

 private:
  struct Stream {
    const char* row;
    std::int64_t stride, bytes, left;
  };
  static constexpr int kMost = 12;
  Stream streams_[kMost];
  int num_ = 0;
  std::int64_t of_step_ = 0;
};

// The pair after `pair` if it belongs to the same task; else -1.
inline std::int64_t next_pair(const Problem& p, const Config& config, std::int64_t pair) {
  const std::int64_t next = pair + 1;
  return next % config.pairs_of_task != 0 && next < p.batch * p.heads_kv ? next : -1;
}

}  // namespace attn::cpu
