// The structure that every kernel is given (kernels/shared/arguments.cuh), of a call's tensors and
// numbers.
#pragma once

#include <attn/arguments.hpp>

#include "cuda/kernels/shared/arguments.cuh"

namespace attn::cuda {

// For arguments that were validated, of a problem that check_support() took.
device::Arguments device_arguments(Pass pass, const Problem& problem, const Arguments& arguments);
// Whether some tensor can't be loaded 16 bytes at a time, for its dims, strides, address or type;
// or dropout's blocks of 16 x 16 (shared/dropout.cuh) are none of the tensors', for the call's
// origin.
bool loads_by_elements(Pass pass, const Problem& problem, const device::Arguments& arguments);

}  // namespace attn::cuda
