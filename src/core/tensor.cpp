// TensorView and element types: sizes, names, contiguous strides.
#include "core/tensor.hpp"

#include <attn/context.hpp>
#include <attn/tensor.hpp>
#include <string>
#include <utility>

#include "core/element_size.hpp"
#include "core/names.hpp"

namespace attn {

std::int64_t size_of(DType dtype) {
  return core::element_size(dtype);
}

const char* to_string(DType dtype) {
  return core::name_of(dtype);
}

const char* to_string(Device device) {
  return core::name_of(device);
}

TensorView TensorView::contiguous(const void* data, DType dtype,
                                  std::initializer_list<std::int64_t> shape) {
  if (shape.size() < 1 || shape.size() > static_cast<std::size_t>(kMaxRank)) {
    throw Error(ErrorCode::invalid_argument, "TensorView::contiguous: rank: found " +
                                                 std::to_string(shape.size()) +
                                                 " dimensions; accepted 1 to 4");
  }
  TensorView view;
  view.data = const_cast<void*>(data);
  view.dtype = dtype;
  for (const std::int64_t size : shape) {
    view.shape[static_cast<std::size_t>(view.rank++)] = size;
  }
  core::set_contiguous_strides(view);
  return view;
}

TensorView TensorView::transposed(int dim_a, int dim_b) const {
  if (dim_a < 0 || dim_a >= rank || dim_b < 0 || dim_b >= rank) {
    throw Error(ErrorCode::invalid_argument,
                "TensorView::transposed: dimensions: found " + std::to_string(dim_a) + " and " +
                    std::to_string(dim_b) + "; accepted 0 to " + std::to_string(rank - 1));
  }
  TensorView view = *this;
  const auto a = static_cast<std::size_t>(dim_a);
  const auto b = static_cast<std::size_t>(dim_b);
  std::swap(view.shape[a], view.shape[b]);
  std::swap(view.strides[a], view.strides[b]);
  return view;
}

std::string to_string(const TensorView& view) {
  if (!view.given()) return "not given";
  const auto list = [&](const std::array<std::int64_t, kMaxRank>& values) {
    std::string text = "[";
    for (int d = 0; d < view.rank && d < kMaxRank; ++d) {
      if (d > 0) text += ", ";
      text += std::to_string(values[static_cast<std::size_t>(d)]);
    }
    return text + "]";
  };
  std::string text = to_string(view.dtype);
  text += list(view.shape) + " strides " + list(view.strides) + " on " + to_string(view.device);
  if (view.ordinal != 0) text.append(":").append(std::to_string(view.ordinal));
  return text;
}

namespace core {

void set_contiguous_strides(TensorView& view) {
  // Unsigned, because the product may overflow. validate refuses such shapes later.
  std::uint64_t stride = 1;
  for (int d = view.rank - 1; d >= 0; --d) {
    const auto at = static_cast<std::size_t>(d);
    view.strides[at] = static_cast<std::int64_t>(stride);
    const std::int64_t size = view.shape[at];
    if (size > 1) stride *= static_cast<std::uint64_t>(size);
  }
}

}  // namespace core
}  // namespace attn
