// The families in order, and the plan of the first that takes a problem.
#pragma once

#include "cuda/families/family.hpp"

namespace attn::cuda {

// Which families may run a call. sm90, and automatic: sm90 where it takes the call, else sm80. The
// environment variable ATTN_CUDA_FAMILY, read once, names one.
enum class FamilyChoice { automatic, sm80, sm90 };
FamilyChoice parse_family_choice(const char* text);  // anything else, and null: automatic
FamilyChoice family_choice();

// In the order in which they are asked.
std::span<const Family* const> families(FamilyChoice choice);

// The plan of calls whose tensors allow `access`, or why there is none. A pure function, for
// problems that validate_problem() accepted.
core::Result<CudaPlan> make_plan(Pass pass, const Problem& problem, const DeviceFacts& facts,
                                 core::Access access = core::Access::tma,
                                 FamilyChoice choice = FamilyChoice::automatic);

}  // namespace attn::cuda
