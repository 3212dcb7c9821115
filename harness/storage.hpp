// Storage: a block for one or several tensors, with guards at both ends and a pattern in gaps.
// After a call it reports whether anything except the elements was written.
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
  // Filled with 0xFF (NaN in every float type, -1 in i32) between guards.
  explicit Storage(std::int64_t bytes);
  // The first byte after the leading guard, 64-byte aligned.
  [[nodiscard]] unsigned char* begin() { return bytes_.data() + front_; }
  [[nodiscard]] std::int64_t size() const { return size_; }
  // The complete block, including guards.
  [[nodiscard]] std::span<unsigned char> bytes() { return bytes_; }

  // Records the current bytes: everything outside the elements of `views` must stay unchanged.
  void seal(std::vector<TensorView> views);
  // Empty, or the position of a changed byte outside the elements (without views: of any changed
  // byte).
  [[nodiscard]] std::string changed() const;

 private:
  std::vector<unsigned char> bytes_;
  std::vector<unsigned char> sealed_;
  std::vector<TensorView> views_;
  std::size_t front_ = 0;
  std::int64_t size_ = 0;
};

// Strides of a tensor in a memory layout, the offset of its first element, and the extent from
// there to the end of its last element. Shapes are [b, n, h, d], [total, h, d] or, if `rows` is
// false, any shape whose last dimension is a row: statistics, bias, mask.
struct Placement {
  std::int64_t skip = 0;
  std::int64_t span = 0;
  std::vector<std::int64_t> strides;
};
Placement place(const std::vector<std::int64_t>& shape, Memory memory, bool rows);

// A view without memory, with contiguous strides.
TensorView shaped(DType dtype, const std::vector<std::int64_t>& shape);

}  // namespace attn::harness
