// The structure that every kernel is given (kernels/shared/arguments.cuh), of a call's tensors and
// numbers.
#pragma once

#include <attn/arguments.hpp>

#include "cuda/kernels/shared/arguments.cuh"

namespace attn::cuda {

// Arguments were validated; check_support() took the problem.
device::Arguments device_arguments(Pass pass, const Problem& problem, const Arguments& arguments);

}  // namespace attn::cuda
