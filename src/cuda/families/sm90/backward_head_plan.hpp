// The plan of sm90/backward_head.cu, for short sequences: a part of backward_plan.cpp.
#pragma once

#include <attn/problem.hpp>

#include "cuda/host/plan.hpp"

namespace attn::cuda::sm90 {

inline constexpr char kHeadBackwardSource[] = "sm90/backward_head.cu";

// Rows of k and v per box of their tensor maps.
inline constexpr int kHeadKeyRows = 64;

// Whether the kernel supports the problem and is faster than sm90/backward.cu with its pre- and
// postprocessing kernels. For problems that backward_refusal() does not refuse.
bool pays_to_own_heads(const Problem& problem, const DeviceFacts& facts);
// Adds the kernel, the only one of the plan.
void add_head_backward(const Problem& problem, const DeviceFacts& facts, CudaPlan& plan);

}  // namespace attn::cuda::sm90
