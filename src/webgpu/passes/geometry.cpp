// Implements geometry.hpp.
#include "webgpu/passes/geometry.hpp"

#include <algorithm>
#include <array>

namespace attn::webgpu {
namespace {

View placed(const TensorView& tensor) {
  View view;
  view.buffer = tensor.data;
  view.offset_bytes = tensor.offset_bytes;
  view.dtype = tensor.dtype;
  return view;
}

std::int64_t size_at(const TensorView& tensor, int dim) {
  return tensor.shape[static_cast<std::size_t>(dim)];
}

// 0 for dimensions of size 1, where the stride is never used.
std::int64_t stride_at(const TensorView& tensor, int dim) {
  return size_at(tensor, dim) > 1 ? tensor.strides[static_cast<std::size_t>(dim)] : 0;
}

}  // namespace

View rows_view(const TensorView& tensor) {
  View view = placed(tensor);
  if (!tensor.given()) return View{.rows = 0};
  const int first = tensor.rank - 3;
  if (first > 0) {
    view.batch = size_at(tensor, 0);
    view.stride_batch = stride_at(tensor, 0);
  }
  view.rows = size_at(tensor, first);
  view.stride_row = stride_at(tensor, first);
  view.heads = size_at(tensor, first + 1);
  view.stride_head = stride_at(tensor, first + 1);
  view.dim = size_at(tensor, first + 2);
  return view;
}

View row_scalars_view(const TensorView& tensor) {
  View view = placed(tensor);
  if (!tensor.given()) return View{.rows = 0};
  const int first = tensor.rank - 2;
  if (first > 0) {
    view.batch = size_at(tensor, 0);
    view.stride_batch = stride_at(tensor, 0);
  }
  view.heads = size_at(tensor, first);
  view.stride_head = stride_at(tensor, first);
  view.rows = size_at(tensor, first + 1);
  view.stride_row = stride_at(tensor, first + 1);
  return view;
}

View score_view(const TensorView& tensor) {
  if (!tensor.given()) return View{.rows = 0};
  View view = placed(tensor);
  const auto take = [&](int dim, std::int64_t& size, std::int64_t& stride) {
    size = size_at(tensor, dim);
    stride = stride_at(tensor, dim);
    if (stride == 0 && size > 1) size = 1;  // broadcast by a stride of 0
  };
  take(0, view.batch, view.stride_batch);
  take(1, view.heads, view.stride_head);
  take(2, view.rows, view.stride_row);
  take(3, view.dim, view.stride_dim);
  return view;
}

View list_view(const TensorView& tensor) {
  if (!tensor.given()) return View{.rows = 0};
  View view = placed(tensor);
  const auto last = static_cast<std::size_t>(tensor.rank - 1);
  view.rows = tensor.shape[last];
  view.stride_row = tensor.strides[last];
  if (tensor.rank == 2) {
    view.batch = tensor.shape[0];
    view.stride_batch = view.batch > 1 ? tensor.strides[0] : 0;
  }
  return view;
}

View table_view(const TensorView& tensor) {
  if (!tensor.given()) return View{.rows = 0};
  View view = placed(tensor);
  view.rows = size_at(tensor, 0);
  view.stride_row = stride_at(tensor, 0);
  view.dim = size_at(tensor, 1);
  return view;
}

View scratch_view(const Operand& part, DType dtype, std::int64_t batch, std::int64_t heads,
                  std::int64_t rows, std::int64_t dim) {
  View view;
  view.memory = part.memory;
  view.offset_bytes = static_cast<std::int64_t>(part.offset);
  view.dtype = dtype;
  view.batch = batch;
  view.rows = rows;
  view.heads = heads;
  view.dim = dim;
  view.stride_row = dim;
  view.stride_head = rows * dim;
  view.stride_batch = batch > 1 ? heads * rows * dim : 0;
  return view;
}

bool in_units(const View& view, std::int64_t unit_bytes) {
  const std::int64_t size = size_of(view.dtype);
  const std::array<std::int64_t, 4> bytes{view.stride_batch * size, view.stride_row * size,
                                          view.stride_head * size, view.dim * size};
  return view.stride_dim == 1 && view.offset_bytes % unit_bytes == 0 &&
         std::ranges::all_of(bytes, [&](std::int64_t n) { return n % unit_bytes == 0; });
}

Binding bind(const View& view, const Block& block, std::int64_t unit_bytes,
             std::uint32_t alignment) {
  const std::int64_t size = size_of(view.dtype);
  const std::int64_t batch = view.batch == 1 ? 0 : block.batch;
  const std::int64_t head = view.heads == 1 ? 0 : block.head;
  std::int64_t low = batch * view.stride_batch + head * view.stride_head;
  std::int64_t high = low;
  const std::int64_t first = low;
  const auto reach = [&](std::int64_t count, std::int64_t stride) {
    const std::int64_t last = (count - 1) * stride;
    (last < 0 ? low : high) += last;
  };
  reach(std::min(block.batches, view.batch - batch), view.stride_batch);
  reach(std::min(block.heads, view.heads - head), view.stride_head);
  reach(view.rows, view.stride_row);
  reach(view.dim, view.stride_dim);
  const std::int64_t begin = (view.offset_bytes + low * size) / alignment * alignment;
  const std::int64_t end = view.offset_bytes + (high + 1) * size;
  Binding binding;
  binding.operand = {view.memory, view.buffer, static_cast<std::uint64_t>(begin),
                     static_cast<std::uint64_t>((end - begin + 3) / 4 * 4)};
  const auto units = [&](std::int64_t elements) {
    return static_cast<U32>(elements * size / unit_bytes);
  };
  binding.place = {static_cast<U32>((view.offset_bytes + first * size - begin) / unit_bytes),
                   units(view.stride_batch), units(view.stride_row), units(view.stride_head)};
  return binding;
}

std::uint32_t number_of(DType dtype) {
  if (dtype == DType::f16) return 1;
  return dtype == DType::bf16 ? 2 : 0;
}

}  // namespace attn::webgpu
