// Which memory a view touches, and whether two views share any of it: for the rules on aliases.
#pragma once

#include <attn/tensor.hpp>
#include <cstdint>
#include <limits>

namespace attn::core {

// No view may span more: keeps sums of two spans inside 64 bits.
inline constexpr std::int64_t kMaxBytes = std::int64_t{1} << 60;

// Bytes [begin, end) around all elements, as addresses (offsets for WebGPU buffers). begin == end
// for views without elements.
struct ByteRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

// False when the view spans more than kMaxBytes. Strides are >= 0.
bool byte_range(const TensorView& view, ByteRange& range);

// Both views have the same elements at the same indices.
bool same_view(const TensorView& a, const TensorView& b);

// Whether an element of `a` shares a byte with one of `b`: exact for what callers do in practice
// (slices and column ranges of one buffer); where strides make the search long, true.
bool share_bytes(const TensorView& a, const TensorView& b);

// Whether two elements of the view share a byte.
bool overlaps_itself(const TensorView& view);

}  // namespace attn::core
