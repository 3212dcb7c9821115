// The kernels of a bias's gradient, for the plans of backwards of any family.
#pragma once

#include <attn/problem.hpp>

#include "cuda/host/plan.hpp"

namespace attn::cuda {

// Whether a main kernel may add dS to f32 sums in global memory (dbias_accum), which a small kernel
// converts: two products fewer than a kernel for dbias alone, for memory and an order of sums that
// changes from run to run. Reductions of 16 bytes came with 9.0. If the bias is broadcast, a
// deterministic call can't.
bool can_sum_bias_gradient(const Problem& problem, const DeviceFacts& facts);
// The kernel that converts the sums, after the main kernel.
void add_bias_gradient_convert(CudaPlan& plan, const Problem& problem);

// sm80/bias_gradient.cu, a kernel for dbias alone, deterministic for every broadcast shape. If the
// gradient has too few tiles for the device, each is the sum of several splits (a part of the
// workspace), which another kernel adds.
int bias_gradient_splits(const Problem& problem, const DeviceFacts& facts);
void add_bias_gradient(CudaPlan& plan, const Problem& problem, const DeviceFacts& facts,
                       bool element_access);

}  // namespace attn::cuda
