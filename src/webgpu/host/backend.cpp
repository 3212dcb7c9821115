// Implements core::Backend with WebGPU. Host tensors are copied to the process's device and back.
// Tensors on an engine's device go through attn::webgpu::Recording.
#include "webgpu/backend.hpp"

#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/signature.hpp"
#include "webgpu/host/host_tensors.hpp"
#include "webgpu/host/plan.hpp"
#include "webgpu/host/run.hpp"
#include "webgpu/passes/attention.hpp"
#include "webgpu/passes/operations.hpp"

namespace attn::webgpu {
namespace {

// Removes the backend name from a message: the caller adds it.
std::string without_name(std::string message) {
  constexpr std::string_view kName = "webgpu: ";
  return message.starts_with(kName) ? message.substr(kName.size()) : message;
}

class WebgpuBackend final : public core::Backend {
 public:
  const char* name() const override { return "webgpu"; }
  attn::Device device() const override { return attn::Device::webgpu; }
  bool copies_host_tensors() const override { return true; }

  bool usable(std::string& detail) const override {
    std::shared_ptr<Device> device;
    core::Status status = Device::process(device);
    detail = status.ok() ? to_string(device->facts()) + ", " + to_string(device->provider())
                         : without_name(std::move(status.message));
    return status.ok();
  }

  core::Result<core::PlanPointer> plan(Pass pass, const Problem& problem, core::Access,
                                       const core::Executor&) const override {
    using Planned = core::Result<core::PlanPointer>;
    std::shared_ptr<Device> device;
    core::Status status = Device::process(device);
    if (!status.ok()) return Planned::none(without_name(std::move(status.message)));
    core::Result<WebGpuPlan> made = make_plan(pass, problem, device->facts());
    if (!made.ok()) return Planned::none(without_name(made.reason()));
    return core::PlanPointer(std::make_shared<const WebGpuPlan>(std::move(made).value()));
  }

  core::Status prepare(const core::Plan& plan, const core::Executor&) const override {
    std::shared_ptr<Device> device;
    core::Status status = Device::process(device);
    for (const KernelSpec& spec : static_cast<const WebGpuPlan&>(plan).kernels) {
      const Pipeline* pipeline = nullptr;
      if (status.ok()) status = device->pipelines().get(spec, pipeline);
    }
    return status;
  }

  core::Status launch(const core::Plan& plan, const Arguments& arguments,
                      const core::Executor& executor) const override {
    if (arguments.q.device == attn::Device::webgpu) return elsewhere();
    std::shared_ptr<Device> device;
    core::Status status = Device::process(device);
    if (!status.ok()) return status;
    HostTensors tensors(*device);
    const core::Slots slots = core::slots_of(plan.pass, plan.problem);
    for (const core::Slot& slot : slots) {
      if (slot.use != core::Use::ignored) tensors.add(arguments.*slot.view, slot.written);
    }
    status = tensors.upload();
    if (!status.ok()) return status;
    Arguments there = arguments;
    for (const core::Slot& slot : slots) {
      there.*slot.view =
          slot.use != core::Use::ignored ? tensors.on_device(arguments.*slot.view) : TensorView{};
    }
    if (arguments.seed.device != nullptr) there.seed = *arguments.seed.device;
    if (arguments.offset.device != nullptr) there.offset = *arguments.offset.device;
    Work work;
    status = make_work(static_cast<const WebGpuPlan&>(plan), there, work);
    for (const Dispatch& dispatch : work.dispatches) {
      if (executor.observer != nullptr) executor.report_launch(name_of(dispatch.spec).c_str());
    }
    return finish(std::move(status), work, tensors, *device);
  }

  core::Status merge(const MergeArguments& a, const core::Executor&) const override {
    return operate(
        a, {&MergeArguments::o1, &MergeArguments::lse1, &MergeArguments::o2, &MergeArguments::lse2},
        {&MergeArguments::o, &MergeArguments::lse});
  }
  core::Status merge_backward(const MergeBackwardArguments& a,
                              const core::Executor&) const override {
    using A = MergeBackwardArguments;
    return operate(a, {&A::o1, &A::lse1, &A::o2, &A::lse2, &A::o, &A::lse, &A::dout, &A::dlse},
                   {&A::dout1, &A::dlse1, &A::dout2, &A::dlse2});
  }
  core::Status rope(const RopeArguments& a, const core::Executor&) const override {
    return operate(a,
                   {&RopeArguments::x, &RopeArguments::positions, &RopeArguments::cu_len,
                    &RopeArguments::cos, &RopeArguments::sin},
                   {&RopeArguments::out});
  }

  core::Status cache_build(const CacheRequest&, const core::Executor&,
                           CacheResult&) const override {
    return keeps_none();
  }
  core::Status cache_list(const core::Executor&, std::string&,
                          std::vector<CacheEntry>*) const override {
    return keeps_none();
  }
  core::Status cache_clear(const core::Executor&, std::int64_t&) const override {
    return keeps_none();
  }

 private:
  static core::Status keeps_none() {
    return core::Status::unsupported(
        "webgpu: keeps no compiled kernels on disk; the driver has its own cache of them");
  }

  // Runs an operation on host tensors.
  template <class A>
  static core::Status operate(const A& arguments, std::initializer_list<TensorView A::*> inputs,
                              std::initializer_list<TensorView A::*> outputs) {
    std::shared_ptr<Device> device;
    core::Status status = Device::process(device);
    if (!status.ok()) return status;
    for (TensorView A::* view : outputs) {
      if ((arguments.*view).given() && (arguments.*view).device == attn::Device::webgpu) {
        return elsewhere();
      }
    }
    HostTensors tensors(*device);
    for (TensorView A::* view : inputs) tensors.add(arguments.*view, false);
    for (TensorView A::* view : outputs) tensors.add(arguments.*view, true);
    status = tensors.upload();
    if (!status.ok()) return status;
    A there = arguments;
    for (TensorView A::* view : inputs) there.*view = tensors.on_device(arguments.*view);
    for (TensorView A::* view : outputs) there.*view = tensors.on_device(arguments.*view);
    Work work;
    status = make_work(there, device->facts(), work);
    return finish(std::move(status), work, tensors, *device);
  }

  static core::Status finish(core::Status status, const Work& work, HostTensors& tensors,
                             Device& device) {
    if (status.ok()) status = run(device, work);
    return status.ok() ? tensors.download() : status;
  }

  static core::Status elsewhere() {
    return core::Status::unsupported(
        "webgpu: tensors in buffers of WebGPU: their device is not known here; accepted by "
        "attn::webgpu::Recording, or tensors on host");
  }
};

}  // namespace

const core::Backend& backend() {
  static const WebgpuBackend instance;
  return instance;
}

}  // namespace attn::webgpu
