// A call on a device: what the host twin of each kernel is given, and the checks that only a driver
// can make.
#pragma once

#include <array>
#include <attn/arguments.hpp>

#include "core/status.hpp"
#include "cuda/families/make_plan.hpp"
#include "cuda/host/arguments.hpp"
#include "cuda/host/launch.hpp"

namespace attn::cuda {

// The kernels are loaded, the context is current.
struct DeviceCall {
  const CurrentContext& context;
  const Arguments& tensors;
  const CudaPlan& plan;
  const core::Executor& executor;
  std::array<const Kernel*, kMaxKernels> kernels;  // of plan.kernels
  abi::Stream stream;
  void* workspace;  // plan.workspace_bytes; the caller's or the call's own
};

// invalid_argument where a tensor of the plan, the workspace or a number given as a device pointer
// is not memory of the device; see check_pointer. Arguments were validated.
core::Status check_pointers(const Driver& driver, const CudaPlan& plan, const Arguments& arguments,
                            int ordinal);

// Queues the plan's kernels on the stream.
core::Status run(const DeviceCall& call);

}  // namespace attn::cuda
