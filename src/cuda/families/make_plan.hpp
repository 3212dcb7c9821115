// Tries the families in order, and makes the plan of the first that supports a problem.
#pragma once

#include "cuda/families/family.hpp"

namespace attn::cuda {

// Which families may run a call. sm90 and automatic: sm90 if it supports the call, else sm80.
// `automatic` also prefers sm80 where it is faster. The environment variable ATTN_CUDA_FAMILY, read
// once, selects a choice.
enum class FamilyChoice { automatic, sm80, sm90 };
FamilyChoice parse_family_choice(const char* text);  // null or an unknown name: automatic
FamilyChoice family_choice();

// The families of a choice, in order of preference.
std::span<const Family* const> families(FamilyChoice choice);

// The plan of calls whose tensors allow `access`, or why there is none. A pure function, for
// problems that validate_problem() accepted.
core::Result<CudaPlan> make_plan(Pass pass, const Problem& problem, const DeviceFacts& facts,
                                 core::Access access = core::Access::tma,
                                 FamilyChoice choice = FamilyChoice::automatic);

}  // namespace attn::cuda
