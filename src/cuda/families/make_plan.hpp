// The families in order, and the plan of the first that takes a problem.
#pragma once

#include "cuda/families/family.hpp"

namespace attn::cuda {

std::span<const Family* const> families();

// The plan of calls whose tensors allow `access`, or why there is none. A pure function, for
// problems that validate_problem() accepted.
core::Result<CudaPlan> make_plan(Pass pass, const Problem& problem, const DeviceFacts& facts,
                                 core::Access access = core::Access::tma);

}  // namespace attn::cuda
