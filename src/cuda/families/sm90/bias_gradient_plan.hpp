// The plan of sm90/bias_gradient.cu, which computes dbias after the main kernel of a backward.
#pragma once

#include <attn/problem.hpp>

#include "cuda/host/plan.hpp"

namespace attn::cuda::sm90 {

inline constexpr const char* kBiasGradientEntry = "attn_backward_dbias_sm90";

// Whether the kernel computes the problem's dbias. For problems that backward_refusal() does not
// refuse. sm80/bias_gradient.cu computes the others.
bool takes_bias_gradient_sm90(const Problem& problem);
// Whether dbias has so few tiles that partial sums, and the kernel that adds them, take longer than
// sums in global memory by the main kernel. 128 sequences of 128 rows, 4 heads, dim 32 (4 tiles):
// 61 instead of 55 us; 256 of 256 (16 tiles): 240 instead of 247 us (H200).
bool has_few_bias_gradient_tiles(const Problem& problem);
// The number of partial sums that passes/bias_gradient_sum.cu adds; 1: none.
int bias_gradient_splits_sm90(const Problem& problem, const DeviceFacts& facts);
// Adds the kernels. `box_q`: queries per box of the tensor maps of q and dout (the main kernel's).
void add_bias_gradient_sm90(CudaPlan& plan, const Problem& problem, const DeviceFacts& facts,
                            int box_q);

}  // namespace attn::cuda::sm90
