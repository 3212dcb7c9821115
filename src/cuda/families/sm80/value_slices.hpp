// Slices of a forward with dims above 256: each launch has kMaxValueDim columns of v and o, and the
// first writes lse.
#pragma once

#include <cstddef>

#include "cuda/families/family.hpp"
#include "cuda/families/sm80/heuristics.hpp"

namespace attn::cuda::sm80 {

inline constexpr std::size_t kMaxValueSlices = 2;  // dims up to 512

// The common parameters of launch `n`.
device::Arguments value_slice(const ParameterSources& from, std::size_t n);

}  // namespace attn::cuda::sm80
