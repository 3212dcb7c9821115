// The kernels that compute dbias, for backward plans of any family.
#pragma once

#include <attn/problem.hpp>

#include "cuda/host/plan.hpp"

namespace attn::cuda {

// Whether the main kernel may add dS to f32 sums in global memory (dbias_accum), which a small
// kernel converts. This saves the two matrix products of a separate dbias kernel. It costs memory,
// and the order of additions changes from run to run, so deterministic calls with a broadcast bias
// can't use it. It needs 9.0 for reductions of 16 bytes.
bool can_sum_bias_gradient(const Problem& problem, const DeviceFacts& facts);
// Adds the kernel that converts the sums, after the main kernel.
void add_bias_gradient_convert(CudaPlan& plan, const Problem& problem);

// sm80/bias_gradient.cu, a separate kernel for dbias, deterministic for every broadcast shape. If
// dbias has too few tiles to fill the device, each tile is computed in several splits. They are
// stored in the workspace, and another kernel adds them.
int bias_gradient_splits(const Problem& problem, const DeviceFacts& facts);
void add_bias_gradient(CudaPlan& plan, const Problem& problem, const DeviceFacts& facts,
                       bool element_access);
// Adds the kernel that adds the partial sums of the splits.
void add_bias_gradient_sum(CudaPlan& plan, const Problem& problem);

}  // namespace attn::cuda
