// Calls; see call.hpp.
#include "cuda/call.hpp"

#include <utility>

#include "cuda/families/rotary.hpp"
#include "cuda/host/graphs.hpp"

namespace attn::cuda {

core::Status check_pointers(const Driver& driver, const CudaPlan& plan, const Arguments& arguments,
                            int ordinal) {
  for (std::size_t i = 0; i < plan.num_tensors; ++i) {
    const TensorView& view = arguments.*plan.tensors[i].view;
    bool empty = !view.given();  // the pointer of an empty tensor is never followed
    for (int d = 0; d < view.rank; ++d) {
      empty = empty || view.shape[static_cast<std::size_t>(d)] == 0;
    }
    if (empty) continue;
    core::Status status = check_pointer(driver, plan.tensors[i].name, view.address(), ordinal);
    if (!status.ok()) return status;
  }
  const std::pair<const char*, const void*> others[] = {
      {"workspace", arguments.workspace},
      {"seed", plan.problem.dropout ? arguments.seed.device : nullptr},
      {"offset", plan.problem.dropout ? arguments.offset.device : nullptr}};
  for (const auto& [name, pointer] : others) {
    if (pointer == nullptr) continue;
    core::Status status = check_pointer(driver, name, pointer, ordinal);
    if (!status.ok()) return status;
  }
  return {};
}

namespace {

// `tensors`: those of the call, or with `rotary` its copies.
core::Status launch(const DeviceCall& call, const Arguments& tensors, RotaryCall* rotary) {
  const CudaPlan& plan = call.plan;
  const core::Access access = rotary != nullptr ? core::Access::element : plan.access;
  device::Arguments common = device_arguments(plan.pass, plan.problem, tensors, access);
  place(plan.workspace, plan.problem, call.workspace, common);
  if (rotary != nullptr) rotary->take_gradients(common);
  std::array<KernelLaunch, kMaxKernels> memory_of_launches;
  const auto launches = std::span(memory_of_launches).first(plan.num_kernels);
  for (std::size_t i = 0; i < launches.size(); ++i) {
    launches[i] = {call.kernels[i], {static_cast<unsigned>(plan.blocks[i])}, block_of(common)};
  }
  ParameterMemory memory;
  core::Status status = plan.family->set_parameters(
      {call.context.driver(), plan, plan.runs_on_copies ? plan.on_copies : plan.problem, tensors,
       common, call.workspace},
      launches, memory);
  if (!status.ok()) return status;
  if (rotary != nullptr) rotary->set_parameters(launches);
  status = launch_in_order(call.context, launches, call.stream);
  if (call.executor.observer == nullptr || !status.ok()) return status;
  for (std::size_t i = 0; i < launches.size(); ++i) {
    if (!launches[i].grid.empty()) call.executor.report_launch(call.kernels[i]->spec.entry);
  }
  return status;
}

}  // namespace

// RotaryCall has 12 KB, which a std::optional of it would set to zero in every call.
core::Status run(const DeviceCall& call) {
  if (!call.plan.runs_on_copies) return launch(call, call.tensors, nullptr);
  RotaryCall rotary(call.plan, call.tensors, call.workspace);
  return launch(call, rotary.tensors(), &rotary);
}

}  // namespace attn::cuda
