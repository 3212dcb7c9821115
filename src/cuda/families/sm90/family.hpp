// The family sm90: wgmma, TMA and warp specialization, only for compute capability 9.0. It supports
// the problems that forward_refusal() and backward_refusal() do not refuse.
#pragma once

#include "cuda/families/family.hpp"

namespace attn::cuda::sm90 {

const Family& family();

}  // namespace attn::cuda::sm90
