// Geometry: addresses of the elements of a tensor, and how a block of it is bound to a kernel.
#pragma once

#include <attn/tensor.hpp>
#include <cstdint>

#include "core/status.hpp"
#include "webgpu/host/work.hpp"

namespace attn::webgpu {

// A tensor as rows: element x of row i, head h, sequence b. Strides in elements. Packed tensors
// have one sequence.
struct View {
  Memory memory = Memory::tensor;
  void* buffer = nullptr;
  std::int64_t offset_bytes = 0;
  DType dtype = DType::f32;
  std::int64_t batch = 1, rows = 1, heads = 1, dim = 1;
  std::int64_t stride_batch = 0, stride_row = 0, stride_head = 0, stride_dim = 1;

  // Whether it has elements.
  [[nodiscard]] bool given() const {
    return batch > 0 && rows > 0 && heads > 0 && dim > 0 &&
           (buffer != nullptr || memory != Memory::tensor);
  }
};

// [b, len, heads, dim] or [total, heads, dim].
View rows_view(const TensorView& tensor);
// [b, heads, len] or [heads, total]: rows of one element.
View row_scalars_view(const TensorView& tensor);
// A part of scratch memory as [b, heads, rows, dim].
View scratch_view(const Operand& part, DType dtype, std::int64_t batch, std::int64_t heads,
                  std::int64_t rows, std::int64_t dim);

// Bias, mask and dbias: [b|1, h|1, len_q|1, len_kv|1] with the last as `dim`. Broadcast strides are
// 0.
View score_view(const TensorView& tensor);
// [n] or [batch, n]: rows of one element.
View list_view(const TensorView& tensor);
// [n, m]: rows of m elements.
View table_view(const TensorView& tensor);

// Whether offset, strides and row length are multiples of `unit_bytes`.
bool in_units(const View& view, std::int64_t unit_bytes);

// Sequences [batch, batch + batches) and heads [head, head + heads) of a call. A tensor with one
// sequence or head (packed or broadcast) is bound completely.
struct Block {
  std::int64_t batch = 0, batches = 1;
  std::int64_t head = 0, heads = 1;
};

// The bytes of a block, starting at a multiple of `alignment`, and the position of its first row in
// them, in units of `unit_bytes`.
struct Binding {
  Operand operand;
  StridedTensor place;
};
Binding bind(const View& view, const Block& block, std::int64_t unit_bytes,
             std::uint32_t alignment);

// Number of the type in kernels: 0 f32, 1 f16, 2 bf16.
std::uint32_t number_of(DType dtype);

}  // namespace attn::webgpu
