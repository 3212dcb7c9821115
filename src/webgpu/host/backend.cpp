// The WebGPU backend behind the chain's interface. Tensors of the host are copied to the process's
// device and back; those of an engine's device go through attn::webgpu::Recording.
#include "webgpu/backend.hpp"

#include <string>

#include "core/signature.hpp"
#include "webgpu/host/attention.hpp"
#include "webgpu/host/host_tensors.hpp"
#include "webgpu/host/plan.hpp"
#include "webgpu/host/run.hpp"

namespace attn::webgpu {
namespace {

class WebgpuBackend final : public core::Backend {
 public:
  const char* name() const override { return "webgpu"; }
  attn::Device device() const override { return attn::Device::webgpu; }
  bool copies_host_tensors() const override { return true; }

  bool usable(std::string& detail) const override {
    std::shared_ptr<Device> device;
    const core::Status status = Device::process(device);
    detail = status.ok() ? to_string(device->facts()) + ", " + to_string(device->provider())
                         : status.message;
    return status.ok();
  }

  core::Capability supports(Pass pass, const Problem& problem, std::int32_t) const override {
    std::shared_ptr<Device> device;
    core::Status status = Device::process(device);
    if (!status.ok()) return {false, std::move(status.message)};
    return check_support(pass, problem, device->facts());
  }

  core::Plan plan(Pass pass, const Problem& problem, const core::Executor&) const override {
    std::shared_ptr<Device> device;
    if (!Device::process(device).ok()) return {};
    return make_plan(pass, problem, device->facts());
  }

  core::Status prepare(Pass pass, const Problem& problem, const core::Plan&,
                       const core::Executor&) const override {
    std::shared_ptr<Device> device;
    core::Status status = Device::process(device);
    if (!status.ok()) return status;
    Work work;
    status = work_of_problem(pass, problem, device->facts(), work);
    for (const Step& step : work.steps) {
      const Pipeline* pipeline = nullptr;
      if (status.ok()) status = device->pipelines().get(step.spec, pipeline);
    }
    return status;
  }

  core::Status launch(Pass pass, const Problem& problem, const core::Plan&,
                      const Arguments& arguments, const core::Executor&) const override {
    if (arguments.q.device == attn::Device::webgpu) {
      return core::Status::unsupported(
          "webgpu: tensors in buffers of WebGPU: their device is not known here; accepted by "
          "attn::webgpu::Recording, or tensors on host");
    }
    std::shared_ptr<Device> device;
    core::Status status = Device::process(device);
    if (!status.ok()) return status;
    HostTensors tensors(*device);
    const core::Slots slots = core::slots_of(pass, problem);
    for (const core::Slot& slot : slots) {
      if (slot.use != core::Use::ignored) tensors.add(arguments.*slot.view, slot.written);
    }
    status = tensors.upload();
    if (!status.ok()) return status;
    Arguments there = arguments;
    for (const core::Slot& slot : slots) {
      there.*slot.view = slot.use != core::Use::ignored
                             ? tensors.on_device(arguments.*slot.view)
                             : TensorView{};
    }
    if (arguments.seed.device != nullptr) there.seed = *arguments.seed.device;
    if (arguments.offset.device != nullptr) there.offset = *arguments.offset.device;
    Work work;
    status = make_work({pass, problem, there, device->facts()}, work);
    if (status.ok()) status = run(*device, work);
    return status.ok() ? tensors.download() : status;
  }

  core::Status merge(const MergeArguments&, const core::Executor&) const override {
    return lacks("merge");
  }
  core::Status merge_backward(const MergeBackwardArguments&, const core::Executor&) const override {
    return lacks("backward of merge");
  }
  core::Status rope(const RopeArguments&, const core::Executor&) const override {
    return lacks("rotary embedding");
  }

 private:
  static core::Status lacks(const char* what) {
    return core::Status::unsupported(std::string("webgpu: no kernel for the ") + what + " yet");
  }
};

}  // namespace

const core::Backend& backend() {
  static const WebgpuBackend instance;
  return instance;
}

}  // namespace attn::webgpu
