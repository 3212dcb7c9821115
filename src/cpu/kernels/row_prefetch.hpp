// Prefetches of rows that a kernel reads or writes next, spread over its computation.
#pragma once

#include <cstdint>

namespace attn::cpu {

// Rows to prefetch into L2 while a kernel computes: one row at each step, of each tensor in turn.
// A burst would wait for fill buffers: a core has 16, and a line takes about 100 ns.
class RowPrefetch {
 public:
  void clear() { num_ = at_ = 0; }
  // `count` rows of `bytes`, `stride` apart. More tensors than kMost are left out.
  void add(const char* row, std::int64_t stride, std::int64_t bytes, std::int64_t count) {
    if (num_ < kMost && count > 0) tensors_[num_++] = {row, stride, bytes, count};
  }
  void step() {
    if (num_ == 0) return;
    asm volatile("");  // GCC 12 drops calls of a function that only prefetches
    Tensor& rows = tensors_[at_];
    for (std::int64_t at = 0; at < rows.bytes; at += 64) __builtin_prefetch(rows.row + at, 0, 2);
    rows.row += rows.stride;
    if (--rows.left == 0) {
      rows = tensors_[--num_];
    } else {
      ++at_;
    }
    if (at_ >= num_) at_ = 0;
  }

 private:
  struct Tensor {
    const char* row;
    std::int64_t stride, bytes, left;
  };
  static constexpr int kMost = 10;
  Tensor tensors_[kMost];
  int num_ = 0;
  int at_ = 0;
};

}  // namespace attn::cpu
