// A call on a device: the inputs of a launch, and the checks that need the driver.
#pragma once

#include <array>
#include <attn/arguments.hpp>

#include "core/status.hpp"
#include "cuda/families/make_plan.hpp"
#include "cuda/host/arguments.hpp"
#include "cuda/host/launch.hpp"

namespace attn::cuda {

// The kernels must be loaded, and the context must be current.
struct DeviceCall {
  const CurrentContext& context;
  const Arguments& tensors;
  const CudaPlan& plan;
  const core::Executor& executor;
  std::array<const Kernel*, kMaxKernels> kernels;  // one per kernel of the plan
  abi::Stream stream;
  void* workspace;  // plan.workspace_bytes; from the caller or allocated for the call
};

// Returns invalid_argument if a tensor of the plan, the workspace or a number passed as a device
// pointer is not in memory of the device; see check_pointer. Arguments must be validated.
core::Status check_pointers(const Driver& driver, const CudaPlan& plan, const Arguments& arguments,
                            int ordinal);

// Queues the plan's kernels on the stream.
core::Status run(const DeviceCall& call);

}  // namespace attn::cuda
