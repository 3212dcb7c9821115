// Strided views: tensors as kernels address them, with the same named strides for every layout.
#pragma once

#include <attn/problem.hpp>
#include <attn/tensor.hpp>
#include <cstdint>

#include "core/element_size.hpp"

namespace attn::core {

// Strides in bytes. Row `row` of head `head` of sequence `b` begins at
//   base + b * stride_batch + row * stride_row + head * stride_head;
// in packed tensors `row` counts from the tensor's first row and stride_batch is 0.
struct StridedTensor {
  char* base = nullptr;
  DType dtype = DType::none;
  bool packed = false;
  std::int64_t stride_batch = 0;
  std::int64_t stride_row = 0;
  std::int64_t stride_head = 0;
  [[nodiscard]] bool given() const { return base != nullptr; }
};

// bias, mask, dbias. Strides in bytes; a broadcast dimension has stride 0. Sequence b uses entry
// b / per_entry of the batch dimension.
struct ScoreTensor {
  char* base = nullptr;
  DType dtype = DType::none;
  std::int64_t stride_batch = 0;
  std::int64_t stride_head = 0;
  std::int64_t stride_q = 0;
  std::int64_t stride_kv = 0;
  std::int64_t per_entry = 1;
  [[nodiscard]] bool given() const { return base != nullptr; }
  [[nodiscard]] std::int64_t entry_of(std::int64_t b) const {
    return per_entry == 1 ? b : b / per_entry;
  }
};

// Lengths or cumulative lengths, i32. The stride is in elements.
struct LengthArray {
  const std::int32_t* base = nullptr;
  std::int64_t stride = 0;
  [[nodiscard]] bool given() const { return base != nullptr; }
  [[nodiscard]] std::int64_t operator[](std::int64_t i) const { return base[i * stride]; }
};

inline std::int64_t stride_bytes(const TensorView& view, int dim) {
  return view.strides[static_cast<std::size_t>(dim)] * element_size(view.dtype);
}

// Which dimension of a padded tensor is batch, row and head; -1: none.
struct Roles {
  int batch = 0;
  int row = 1;
  int head = 2;
};

// A packed tensor lacks the batch dimension, so its other roles are one dimension lower.
inline StridedTensor strided(const TensorView& view, Roles roles, int padded_rank) {
  StridedTensor to;
  if (!view.given()) return to;
  const int shift = padded_rank - view.rank;
  to.base = static_cast<char*>(view.address());
  to.dtype = view.dtype;
  to.packed = shift != 0;
  if (!to.packed) to.stride_batch = stride_bytes(view, roles.batch);
  to.stride_row = stride_bytes(view, roles.row - shift);
  if (roles.head >= 0) to.stride_head = stride_bytes(view, roles.head - shift);
  return to;
}

// [batch, len, heads, dim], packed [total, heads, dim], paged [pages, page_size, heads, dim].
inline StridedTensor rows_of(const TensorView& view) {
  return strided(view, {.batch = 0, .row = 1, .head = 2}, 4);
}

// lse, dlse, delta: [batch, heads, len] or packed [heads, total].
inline StridedTensor statistics_of(const TensorView& view) {
  return strided(view, {.batch = 0, .row = 2, .head = 1}, 3);
}

// kv_begin, kv_end, rotary positions: i32 [batch|1, len] or packed [total].
inline StridedTensor indices_of(const TensorView& view) {
  StridedTensor to = strided(view, {.batch = 0, .row = 1, .head = -1}, 2);
  if (to.given() && !to.packed && view.shape[0] == 1) to.stride_batch = 0;
  return to;
}

// [batch|batch/n|1, heads|1, len_q|1, len_kv|1]; `extent` says which dimensions are full.
inline ScoreTensor scores_of(const TensorView& view, const Extent& extent) {
  ScoreTensor to;
  if (!view.given()) return to;
  to.base = static_cast<char*>(view.address());
  to.dtype = view.dtype;
  if (extent.batch) to.stride_batch = stride_bytes(view, 0);
  if (extent.head) to.stride_head = stride_bytes(view, 1);
  if (extent.q) to.stride_q = stride_bytes(view, 2);
  if (extent.kv) to.stride_kv = stride_bytes(view, 3);
  to.per_entry = extent.per_entry;
  return to;
}

inline LengthArray lengths_of(const TensorView& view) {
  if (!view.given()) return {};
  return {static_cast<const std::int32_t*>(view.address()), view.strides[0]};
}

}  // namespace attn::core
