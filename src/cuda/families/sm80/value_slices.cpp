// Slices of columns; see value_slices.hpp.
#include "cuda/families/sm80/value_slices.hpp"

#include <algorithm>

namespace attn::cuda::sm80 {

device::Arguments value_slice(const ParameterSources& from, std::size_t n) {
  const std::int64_t first = kMaxValueDim * static_cast<std::int64_t>(n);
  device::Arguments slice = from.common;
  slice.dim_vo = static_cast<int>(std::min<std::int64_t>(slice.dim_vo - first, kMaxValueDim));
  if (first > 0) {
    slice.v.base += first * size_of(from.tensors.v.dtype);
    slice.o.base += first * size_of(from.tensors.o.dtype);
    slice.lse.base = nullptr;
  }
  return slice;
}

}  // namespace attn::cuda::sm80
