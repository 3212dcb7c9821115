// Rows of small problems in the caller's memory, and their prefetches.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/divide_up.hpp"
#include "cpu/host/call.hpp"

namespace attn::cpu {

// Rows [0, count) of one head in f32. `stride`: elements between rows.
struct SmallRows {
  float* first = nullptr;
  std::int64_t stride = 0;
  std::int64_t count = 0;
  std::int64_t dim = 0;
  [[nodiscard]] float* row(std::int64_t r) const { return first + r * stride; }
};
inline SmallRows SmallQueries(const Call& call, const StridedTensor& rows, const Entry& entry,
                              std::int64_t head, std::int64_t dim) {
  return {reinterpret_cast<float*>(row_address(call, rows, entry.b, entry.first_q, 0, head)),
          rows.stride_row / std::int64_t{sizeof(float)}, entry.len_q, dim};
}
inline SmallRows SmallKeys(const Call& call, const StridedTensor& rows, const Entry& entry,
                           std::int64_t head, std::int64_t dim) {
  return {reinterpret_cast<float*>(row_address(call, rows, entry.b, entry.first_kv, 0, head)),
          rows.stride_row / std::int64_t{sizeof(float)}, entry.len_kv, dim};
}

// Prefetches rows into L2, in the order of add() and then of memory.
class SmallAhead {
 public:
  void clear() {
    num_ = 0;
    now_ = 0;
    of_step_ = 1;
  }
  // Rows [0, count) of `heads` heads, of `bytes` bytes each. If the heads of a row are adjacent,
  // they are one run. More runs than kMost are left out.
  void add(const StridedTensor& rows, const char* row, std::int64_t count, std::int64_t bytes,
           std::int64_t heads) {
    if (count <= 0) return;
    const bool adjacent = rows.stride_head == bytes;
    if (adjacent) bytes *= heads;
    for (std::int64_t n = 0; n < (adjacent ? 1 : heads) && num_ < kMost; ++n) {
      runs_[num_++] = {row, rows.stride_row, count, bytes};
      row += rows.stride_head;
    }
  }
  // Call after the last add(), so that `steps` calls of step() prefetch all rows.
  void spread(std::int64_t steps) {
    std::int64_t rows = 0;
    for (int n = 0; n < num_; ++n) rows += runs_[n].count;
    of_step_ = core::divide_up(rows, std::max<std::int64_t>(steps, 1));
  }
  // Prefetches a row, or the rows of a step after spread().
  void step() {
    for (std::int64_t n = 0; n < of_step_; ++n) prefetch_row();
  }

 private:
  struct Run {
    const char* row;
    std::int64_t stride, count, bytes;
  };
  static constexpr int kMost = 32;
  static constexpr std::int64_t kLine = 64;
  void prefetch_row() {
    if (now_ == num_) return;
    asm volatile("");  // GCC 12 drops calls of a function that only prefetches
    Run& run = runs_[now_];
    for (std::int64_t at = 0; at < run.bytes; at += kLine) __builtin_prefetch(run.row + at, 0, 2);
    run.row += run.stride;
    if (--run.count == 0) ++now_;
  }

  Run runs_[kMost];
  int num_ = 0;
  int now_ = 0;
  std::int64_t of_step_ = 1;
};

}  // namespace attn::cpu
