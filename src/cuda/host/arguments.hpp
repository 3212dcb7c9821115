// Fills the common parameters of kernels (kernels/shared/arguments.cuh) from a call's tensors and
// numbers.
#pragma once

#include <attn/arguments.hpp>

#include "core/access.hpp"
#include "cuda/kernels/shared/arguments.cuh"

namespace attn::cuda {

// For validated arguments of a problem that make_plan() supports. `access`: their access_of(), or
// Access::element if it is not known; then the tensors are asked one by one.
device::Arguments device_arguments(Pass pass, const Problem& problem, const Arguments& arguments,
                                   core::Access access);

// For tensors that device::Arguments has no field for: rows [b, len, heads, dim] or [total, heads,
// dim]; statistics [b, heads, len] or [heads, total]; indices [b|1, len] or [total].
device::StridedTensor device_rows(const TensorView& view);
device::StridedTensor device_statistics(const TensorView& view);
device::StridedTensor device_indices(const TensorView& view);

}  // namespace attn::cuda
