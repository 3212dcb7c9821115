// The plan of sm90/backward_wide.cu, for dims above 128: a part of backward_plan.cpp.
#pragma once

#include <attn/problem.hpp>

#include "cuda/host/plan.hpp"

namespace attn::cuda::sm90 {

inline constexpr int kWideTileQ = 64;

// Whether the problem's dims are too large for sm90/backward.cu.
bool needs_wide_backward(const Problem& problem);
// Whether the dims are at most 512, the limit of this kernel.
bool takes_backward_dims(const Problem& problem);
// Dynamic shared memory of a block.
int wide_backward_shared_bytes(const Problem& problem);
// The blocks of a cluster, which share the columns.
int wide_backward_cluster(const Problem& problem);
// The columns of q and k of all blocks of a cluster, a multiple of 64.
int wide_backward_dim(const Problem& problem);
// The constant `tile_kv` of its Config.
int wide_backward_tile_kv(const Problem& problem);
// Adds the kernel to the plan.
void add_wide_backward(const Problem& problem, CudaPlan& plan);

}  // namespace attn::cuda::sm90
