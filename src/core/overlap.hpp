// Memory ranges and overlap of views, for the rules on aliases.
#pragma once

#include <attn/tensor.hpp>
#include <cstdint>
#include <limits>

namespace attn::core {

// No view may span more, so that the sum of two spans fits 64 bits.
inline constexpr std::int64_t kMaxBytes = std::int64_t{1} << 60;

// Bytes [begin, end) around all elements, as addresses (offsets for WebGPU buffers). begin == end
// for views without elements.
struct ByteRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

// False if the view spans more than kMaxBytes. Strides must be >= 0.
bool byte_range(const TensorView& view, ByteRange& range);

// Both views have the same elements at the same indices.
bool same_view(const TensorView& a, const TensorView& b);

// Whether an element of `a` shares a byte with one of `b`: exact for slices and column ranges
// of one buffer. True without proof if the strides make the search too long.
bool share_bytes(const TensorView& a, const TensorView& b);

// Whether two elements of the view share a byte.
bool overlaps_itself(const TensorView& view);

}  // namespace attn::core
