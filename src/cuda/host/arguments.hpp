// The structure that every kernel is given (kernels/shared/arguments.cuh), of a call's tensors and
// numbers.
#pragma once

#include <attn/arguments.hpp>

#include "cuda/kernels/shared/arguments.cuh"

namespace attn::cuda {

// For arguments that were validated, of a problem that make_plan() takes.
device::Arguments device_arguments(Pass pass, const Problem& problem, const Arguments& arguments);

// For tensors that the structure lacks: rows [b, len, heads, dim] or [total, heads, dim];
// statistics [b, heads, len] or [heads, total]; indices [b|1, len] or [total].
device::StridedTensor device_rows(const TensorView& view);
device::StridedTensor device_statistics(const TensorView& view);
device::StridedTensor device_indices(const TensorView& view);

}  // namespace attn::cuda
