// Calls; see call.hpp.
#include "cuda/host/call.hpp"

#include <string>

#include "cuda/host/arguments.hpp"
#include "cuda/host/graphs.hpp"

namespace attn::cuda {

core::Status check_pointers(const Driver& driver, const DevicePlan& plan, const Problem& problem,
                            const Arguments& arguments, int ordinal) {
  core::Status status;
  const auto check = [&](const char* name, const void* pointer) {
    if (status.ok() && pointer != nullptr) status = check_pointer(driver, name, pointer, ordinal);
  };
  for (std::size_t i = 0; i < plan.num_tensors; ++i) {
    const TensorView& view = arguments.*plan.tensors[i].view;
    bool empty = !view.given();  // the pointer of an empty tensor is never followed
    for (int d = 0; d < view.rank; ++d)
      empty = empty || view.shape[static_cast<std::size_t>(d)] == 0;
    if (!empty) check(plan.tensors[i].name, view.address());
  }
  check("workspace", arguments.workspace);
  if (problem.dropout) {
    check("seed", arguments.seed.device);
    check("offset", arguments.offset.device);
  }
  return status;
}

core::Status run(const DeviceCall& call) {
  device::Arguments arguments = device_arguments(call.pass, call.problem, call.arguments);
  if (call.pass == Pass::backward) {
    place(call.plan.workspace, call.problem, call.workspace, arguments);
  }
  std::array<KernelLaunch, kMaxKernels> launches;
  for (std::size_t i = 0; i < call.plan.num_kernels; ++i) {
    launches[i] = {call.kernels[i], {static_cast<unsigned>(call.plan.blocks[i])}};
  }
  return launch_in_order(call.context, std::span(launches).first(call.plan.num_kernels),
                         call.stream, arguments);
}

}  // namespace attn::cuda
