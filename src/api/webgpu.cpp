// Entry points of <attn/webgpu.hpp>.
#include <attn/webgpu.hpp>
#include <utility>

#include "api/state.hpp"
#include "core/refusal.hpp"
#include "core/validate.hpp"
#include "webgpu/embedding.hpp"

namespace attn::webgpu {

std::shared_ptr<Device> adopt(const Handles& handles) {
  std::shared_ptr<Device> device;
  api::check(wrap(handles, device));
  return device;
}

std::string describe(const Device& device) {
  return text_of(device);
}

class __attribute__((visibility("hidden"))) Recording::State {
 public:
  std::unique_ptr<Recorder> recorder;
};

namespace {

// Refuses a call if its tensors are not in WebGPU buffers.
void check_place(const std::shared_ptr<Device>& device, const TensorView& tensor) {
  if (device == nullptr) {
    api::check(core::refuse("Recording", "device", "null", "one that adopt() gave"));
  }
  if (tensor.device != attn::Device::webgpu) {
    api::check(core::refuse("Recording", "tensors", std::string("on ") + to_string(tensor.device),
                            "Device::webgpu, in buffers of the device"));
  }
}

}  // namespace

Recording::Recording(std::shared_ptr<Device> device, Pass pass, const Problem& problem,
                     const Arguments& arguments)
    : state_(std::make_unique<State>()) {
  check_place(device, arguments.q);
  api::check(core::validate(pass, problem, arguments));
  api::check(make_recorder(std::move(device), pass, problem, arguments, state_->recorder));
}

Recording::Recording(std::shared_ptr<Device> device, const MergeArguments& arguments)
    : state_(std::make_unique<State>()) {
  check_place(device, arguments.o);
  api::check(core::validate(arguments));
  api::check(make_recorder(std::move(device), arguments, state_->recorder));
}

Recording::Recording(std::shared_ptr<Device> device, const MergeBackwardArguments& arguments)
    : state_(std::make_unique<State>()) {
  check_place(device, arguments.o);
  api::check(core::validate(arguments));
  api::check(make_recorder(std::move(device), arguments, state_->recorder));
}

Recording::Recording(std::shared_ptr<Device> device, const RopeArguments& arguments)
    : state_(std::make_unique<State>()) {
  check_place(device, arguments.x);
  api::check(core::validate(arguments));
  api::check(make_recorder(std::move(device), arguments, state_->recorder));
}

Recording::~Recording() = default;
Recording::Recording(Recording&&) noexcept = default;
Recording& Recording::operator=(Recording&&) noexcept = default;

Needs Recording::needs() const {
  return state_->recorder->needs();
}

void Recording::use(const Scratch& scratch) {
  api::check(state_->recorder->use(scratch));
}

int Recording::num_chunks() const {
  return state_->recorder->num_chunks();
}

void Recording::record(int chunk, void* encoder) const {
  api::check(state_->recorder->record(chunk, encoder));
}

void Recording::submit() const {
  api::check(state_->recorder->submit());
}

}  // namespace attn::webgpu
