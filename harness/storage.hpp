// Storage: memory of one or several tensors with guards at both ends, gaps that hold a pattern, and
// a way to ask afterwards whether anything but the elements was written.
#pragma once

#include <attn/tensor.hpp>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "case.hpp"

namespace attn::harness {

class Storage {
 public:
  // Bytes of NaN (0xFF: a NaN in every float type, -1 in i32) with guards around.
  explicit Storage(std::int64_t bytes);
  // The first byte after the leading guard, 64-byte aligned.
  [[nodiscard]] unsigned char* begin() { return bytes_.data() + front_; }
  [[nodiscard]] std::int64_t size() const { return size_; }
  // All of it, guards included.
  [[nodiscard]] std::span<unsigned char> bytes() { return bytes_; }

  // Notes what is here now: everything outside of the elements of `views` must stay so.
  void seal(std::vector<TensorView> views);
  // Empty, or where a byte outside of the elements (or, without views, any byte) has changed.
  [[nodiscard]] std::string changed() const;

 private:
  std::vector<unsigned char> bytes_;
  std::vector<unsigned char> sealed_;
  std::vector<TensorView> views_;
  std::size_t front_ = 0;
  std::int64_t size_ = 0;
};

// Strides of a tensor in a way of lying in memory: elements to skip before the first, and elements
// from there to the end of the last. Shapes are [b, n, h, d], [total, h, d] or (`rows` false)
// anything whose last dimension alone matters: statistics, bias, mask.
struct Placement {
  std::int64_t skip = 0;
  std::int64_t span = 0;
  std::vector<std::int64_t> strides;
};
Placement place(const std::vector<std::int64_t>& shape, Memory memory, bool rows);

// A view without memory, contiguous strides.
TensorView shaped(DType dtype, const std::vector<std::int64_t>& shape);

}  // namespace attn::harness
