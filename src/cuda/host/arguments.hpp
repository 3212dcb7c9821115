// The structure that every kernel is given (kernels/shared/arguments.cuh), of a call's tensors and
// numbers.
#pragma once

#include <attn/arguments.hpp>

#include "cuda/kernels/shared/arguments.cuh"

namespace attn::cuda {

// For arguments that were validated, of a problem that make_plan() takes.
device::Arguments device_arguments(Pass pass, const Problem& problem, const Arguments& arguments);

// Rows of [b, len, heads, dim], of a tensor that the structure lacks.
device::StridedTensor device_rows(const TensorView& view);

}  // namespace attn::cuda
