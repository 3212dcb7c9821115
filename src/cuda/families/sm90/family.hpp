// The family sm90: wgmma, TMA and warp specialization, for compute capability 9.0 alone. It takes
// the problems that forward_refusal() and backward_refusal() let pass.
#pragma once

#include "cuda/families/family.hpp"

namespace attn::cuda::sm90 {

const Family& family();

}  // namespace attn::cuda::sm90
