// The plan of sm90/backward.cu: which problems it takes, its Config, grid and workspace.
#pragma once

#include <attn/problem.hpp>
#include <string>

#include "core/access.hpp"
#include "cuda/host/plan.hpp"

namespace attn::cuda::sm90 {

inline constexpr const char* kBackwardEntry = "attn_backward_sm90";

// Why the kernel does not run the problem; "" if it does.
std::string backward_refusal(const Problem& problem, core::Access access);
// For problems that are not refused.
CudaPlan plan_backward(const Problem& problem, const DeviceFacts& facts);

}  // namespace attn::cuda::sm90
