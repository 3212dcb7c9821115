// Prefetches of rows that a kernel reads or writes next.
#pragma once

#include <cstdint>

namespace attn::cpu {

// Prefetches the cache lines of `bytes` bytes from `at` on: to be written, if kWrite; into L1 with
// kLocality 3, into L2 with 2. GCC 12 takes a function that only prefetches to have no effect and
// drops its calls: the empty asm prevents that.
template <bool kWrite, int kLocality>
[[gnu::always_inline]] inline void prefetch_lines(const char* at, std::int64_t bytes) {
  asm volatile("");
  for (std::int64_t n = 0; n < bytes; n += 64)
    __builtin_prefetch(at + n, kWrite ? 1 : 0, kLocality);
}

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
    Tensor& rows = tensors_[at_];
    prefetch_lines<false, 2>(rows.row, rows.bytes);
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
