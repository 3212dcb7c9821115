// Operations on a device: merge, its backward and rope, one kernel each, without a workspace. The
// plan of an operation is a kernel and a grid; parameters are the kernel's own (kernels/passes/).
#pragma once

#include <attn/arguments.hpp>
#include <cstdint>
#include <span>

#include "core/backend.hpp"
#include "cuda/host/modules.hpp"

namespace attn::device::merge {
struct Sizes;
struct Params;
struct BackwardParams;
}  // namespace attn::device::merge
namespace attn::device::rope {
struct Params;
}

namespace attn::cuda {

// Kernels of all operations, which support every type and shape. Used to compile binaries ahead of
// time.
std::span<const KernelSpec> operation_kernels();
const KernelSpec& merge_kernel();
const KernelSpec& merge_backward_kernel();

// Parameters of validated calls.
device::merge::Params merge_params(const MergeArguments& arguments);
device::merge::BackwardParams merge_params(const MergeBackwardArguments& arguments);
device::rope::Params rope_params(const RopeArguments& arguments);

// The number of blocks of kernels/passes/merge.cu; 0 if o is empty.
std::int64_t merge_blocks(const device::merge::Sizes& sizes);

// Queue the kernel on the call's stream. Return `unsupported` with the reason if there is no
// kernel.
core::Status run(const MergeArguments& arguments, const core::Executor& executor);
core::Status run(const MergeBackwardArguments& arguments, const core::Executor& executor);
core::Status run(const RopeArguments& arguments, const core::Executor& executor);

}  // namespace attn::cuda
