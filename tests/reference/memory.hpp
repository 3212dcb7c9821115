// Memory: owns small contiguous tensors of any type, written from and read as numbers.
#pragma once

#include <attn/tensor.hpp>
#include <cstdint>
#include <cstring>
#include <deque>
#include <limits>
#include <vector>

#include "reference/elements.hpp"

namespace attn::reference::test {

inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
inline constexpr double kInf = std::numeric_limits<double>::infinity();

using Shape = std::vector<std::int64_t>;
using Numbers = std::vector<double>;

class Memory {
 public:
  TensorView tensor(DType dtype, const Shape& shape, const Numbers& values) {
    const TensorView view = allocate(dtype, shape);
    for (std::size_t e = 0; e < values.size(); ++e) {
      write(view, static_cast<std::int64_t>(e), values[e]);
    }
    return view;
  }
  TensorView f64(const Shape& shape, const Numbers& values) {
    return tensor(DType::f64, shape, values);
  }
  // Filled with one value.
  TensorView filled(const Shape& shape, double value, DType dtype = DType::f64) {
    return tensor(dtype, shape, Numbers(static_cast<std::size_t>(count(shape)), value));
  }
  TensorView integers(const Shape& shape, const std::vector<std::int32_t>& values) {
    const TensorView view = allocate(DType::i32, shape);
    std::memcpy(view.data, values.data(), values.size() * sizeof(std::int32_t));
    return view;
  }
  TensorView bytes(const Shape& shape, const std::vector<std::uint8_t>& values) {
    const TensorView view = allocate(DType::u8, shape);
    std::memcpy(view.data, values.data(), values.size());
    return view;
  }

 private:
  static std::int64_t count(const Shape& shape) {
    std::int64_t product = 1;
    for (const std::int64_t extent : shape) product *= extent;
    return product;
  }
  TensorView allocate(DType dtype, const Shape& shape) {
    blocks_.emplace_back(static_cast<std::size_t>(count(shape)) + 1, 0.0);  // 8 bytes per element
    TensorView view;
    view.data = blocks_.back().data();
    view.dtype = dtype;
    view.rank = static_cast<std::int32_t>(shape.size());
    std::int64_t stride = 1;
    for (std::size_t dim = shape.size(); dim-- > 0;) {
      view.shape[dim] = shape[dim];
      view.strides[dim] = stride;
      stride *= shape[dim];
    }
    return view;
  }

  std::deque<std::vector<double>> blocks_;
};

// The elements of a contiguous tensor.
inline Numbers values_of(const TensorView& view) {
  Numbers values;
  std::int64_t count = 1;
  for (std::size_t dim = 0; dim < static_cast<std::size_t>(view.rank); ++dim) {
    count *= view.shape[dim];
  }
  for (std::int64_t e = 0; e < count; ++e) values.push_back(read(view, e));
  return values;
}

}  // namespace attn::reference::test
