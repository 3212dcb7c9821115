// Rows of small problems in the caller's memory, and their prefetches.
#pragma once

#include <algorithm>
#include <attn/tensor.hpp>
#include <cstdint>

#include "core/divide_up.hpp"
#include "cpu/host/call.hpp"

namespace attn::cpu {

// Rows [0, count) of one head in the caller's memory. `stride`: bytes between rows.
struct CallerRows {
  char* first = nullptr;
  std::int64_t stride = 0;
  std::int64_t count = 0;
  std::int64_t dim = 0;
  DType dtype = DType::f32;
  [[nodiscard]] char* row(std::int64_t r) const { return first + r * stride; }
};
inline CallerRows QueriesOfHead(const Call& call, const StridedTensor& rows, const Entry& entry,
                                std::int64_t head, std::int64_t dim) {
  return {row_address(call, rows, entry.b, entry.first_q, 0, head), rows.stride_row, entry.len_q,
          dim, rows.dtype};
}
inline CallerRows KeysOfHead(const Call& call, const StridedTensor& rows, const Entry& entry,
                             std::int64_t head, std::int64_t dim) {
  return {row_address(call, rows, entry.b, entry.first_kv, 0, head), rows.stride_row, entry.len_kv,
          dim, rows.dtype};
}

// Rows in f32 that products read or write: the caller's, or a copy in scratch memory. `stride`:
// elements between rows. dim is a multiple of kSmallDimStep.
struct SmallRows {
  float* first = nullptr;
  std::int64_t stride = 0;
  std::int64_t count = 0;
  std::int64_t dim = 0;
  [[nodiscard]] float* row(std::int64_t r) const { return first + r * stride; }
};

// Prefetches rows into L2, in the order of add() and then of memory.
class SmallAhead {
 public:
  void clear() {
    num_ = 0;
    now_ = -1;
    of_step_ = 0;
    part_ = kAll;
    at_ = end_ = nullptr;
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
  // Call one of these after the last add(), so that `steps` calls of step() prefetch all rows.
  // spread(): full rows.
  void spread(std::int64_t steps) {
    std::int64_t rows = 0;
    for (int n = 0; n < num_; ++n) rows += runs_[n].count;
    of_step_ = core::divide_up(rows, std::max<std::int64_t>(steps, 1));
    next();
  }
  // The same in parts of rows, as few lines as possible in a step: more lines than memory delivers
  // meanwhile would delay the loads of the step.
  void spread_lines(std::int64_t steps) {
    steps = std::max<std::int64_t>(steps, 1);
    std::int64_t lines = 0;
    for (int n = 0; n < num_; ++n) {
      Run& run = runs_[n];
      if (run.stride == run.bytes) run = {run.row, 0, 1, run.bytes * run.count};
      lines += run.count * core::divide_up(run.bytes, kLine);
    }
    part_ = kLine * std::max<std::int64_t>(core::divide_up(lines, steps), 1);
    std::int64_t parts = 0;
    for (int n = 0; n < num_; ++n) {
      parts += runs_[n].count * core::divide_up(runs_[n].bytes, part_);
    }
    of_step_ = core::divide_up(parts, steps);
    next();
  }
  // Prefetches what belongs to a step.
  void step() {
    for (std::int64_t n = 0; n < of_step_; ++n) prefetch_part();
  }

 private:
  struct Run {
    const char* row;
    std::int64_t stride, count, bytes;
  };
  static constexpr int kMost = 32;
  static constexpr std::int64_t kLine = 64;
  static constexpr std::int64_t kAll = std::int64_t{1} << 40;

  // Begins the next row, if there is one.
  void next() {
    if (now_ >= 0 && --runs_[now_].count > 0) {
      runs_[now_].row += runs_[now_].stride;
    } else if (++now_ >= num_) {
      now_ = num_;
      of_step_ = 0;
      return;
    }
    at_ = runs_[now_].row;
    end_ = at_ + runs_[now_].bytes;
  }
  void prefetch_part() {
    if (at_ == end_) return;
    asm volatile("");  // see prefetch_lines()
    const char* at = at_;
    const char* stop = end_ - at > part_ ? at + part_ : end_;
    for (; at < stop; at += kLine) __builtin_prefetch(at, 0, 2);
    at_ = stop;
    if (stop == end_) next();
  }

  Run runs_[kMost];
  int num_ = 0;
  int now_ = -1;
  std::int64_t of_step_ = 0;  // parts
  std::int64_t part_ = kAll;  // bytes of a row that are prefetched together
  const char* at_ = nullptr;  // in row now_
  const char* end_ = nullptr;
};

}  // namespace attn::cpu
