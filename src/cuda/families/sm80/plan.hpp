// Plans of the family sm80: mma.sync and cp.async, for every device since 8.0. It takes every
// problem that CUDA has a kernel for, so it is asked last.
#pragma once

#include "cuda/families/family.hpp"

namespace attn::cuda::sm80 {

const Family& family();

}  // namespace attn::cuda::sm80
