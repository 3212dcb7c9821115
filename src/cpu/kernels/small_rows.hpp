// Rows of small problems in the caller's memory, and their prefetches.
#pragma once

#include <cstdint>

#include "cpu/host/call.hpp"

namespace attn::cpu {

// Rows [0, count) of one head. `stride`: elements between rows.
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
  }
  // Rows [0, count) of `heads` heads. If the heads of a row are adjacent, they are one run.
  // stride_head: bytes. More runs than kMost are left out.
  void add(SmallRows rows, std::int64_t stride_head, std::int64_t heads) {
    if (rows.count <= 0) return;
    stride_head /= std::int64_t{sizeof(float)};
    const bool adjacent = stride_head == rows.dim;
    if (adjacent) rows.dim *= heads;
    for (std::int64_t n = 0; n < (adjacent ? 1 : heads) && num_ < kMost; ++n) {
      runs_[num_++] = rows;
      rows.first += stride_head;
    }
  }
  // Prefetches one row.
  void step() {
    if (now_ == num_) return;
    asm volatile("");  // GCC 12 drops calls of a function that only prefetches
    SmallRows& run = runs_[now_];
    for (std::int64_t c = 0; c < run.dim; c += 16) __builtin_prefetch(run.first + c, 0, 2);
    run.first += run.stride;
    if (--run.count == 0) ++now_;
  }

 private:
  static constexpr int kMost = 32;
  SmallRows runs_[kMost];
  int num_ = 0;
  int now_ = 0;
};

}  // namespace attn::cpu
