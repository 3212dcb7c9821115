// Plans of the family sm80: mma.sync and cp.async, for compute capability 8.0 and later. It
// supports almost every problem that CUDA has a kernel for, so it is tried last.
#pragma once

#include "cuda/families/family.hpp"

namespace attn::cuda::sm80 {

const Family& family();

}  // namespace attn::cuda::sm80
