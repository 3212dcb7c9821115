// Implements calls on an engine's device; see embedding.hpp.
#include "webgpu/embedding.hpp"

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "core/refusal.hpp"
#include "webgpu/host/buffers.hpp"
#include "webgpu/host/plan.hpp"
#include "webgpu/host/run.hpp"
#include "webgpu/passes/attention.hpp"
#include "webgpu/passes/operations.hpp"

namespace attn::webgpu {
namespace {

constexpr std::uint64_t kRangeAlignment = 256;

class WorkRecorder final : public Recorder {
 public:
  WorkRecorder(std::shared_ptr<Device> device, Work work)
      : device_(std::move(device)),
        work_(std::move(work)),
        chunks_(submission_sizes(work_, device_->facts())) {}

  core::Status compile() {
    for (const Dispatch& dispatch : work_.dispatches) {
      const Pipeline* pipeline = nullptr;
      core::Status status = device_->pipelines().get(dispatch.spec, pipeline);
      if (!status.ok()) return status;
    }
    return {};
  }

  Needs needs() const override { return needs_of(work_); }

  core::Status use(const Scratch& scratch) override {
    const Needs needed = needs();
    core::Status status = check("info", scratch.info, needed.info);
    if (status.ok()) status = check("prepared", scratch.prepared, needed.prepared);
    if (status.ok()) status = check("staged", scratch.staged, needed.staged);
    if (status.ok()) status = check("parameters", scratch.parameters, needed.parameters);
    if (!status.ok() || work_.dispatches.empty()) return status;
    const ScratchBuffers buffers{bound(scratch.info), bound(scratch.prepared),
                                 bound(scratch.staged), bound(scratch.parameters)};
    status = resolve(*device_, work_, buffers, dispatches_);
    if (!status.ok()) return status;
    return upload(*device_, buffers.parameters.buffer, buffers.parameters.offset,
                  webgpu::parameters_of(work_));
  }

  int num_chunks() const override { return static_cast<int>(chunks_.size()); }

  core::Status record(int chunk, void* encoder) const override {
    if (chunk < 0 || chunk >= num_chunks()) {
      return core::refuse("record", "chunk", std::to_string(chunk),
                          "0 to " + std::to_string(num_chunks() - 1));
    }
    if (encoder == nullptr)
      return core::refuse("record", "encoder", "null", "a WGPUCommandEncoder");
    std::span<const BoundDispatch> dispatches;
    core::Status status = dispatches_of(chunk, dispatches);
    if (!status.ok()) return status;
    return webgpu::record(*device_, dispatches, static_cast<WGPUCommandEncoder>(encoder));
  }

  core::Status submit() const override {
    for (int chunk = 0; chunk < num_chunks(); ++chunk) {
      std::span<const BoundDispatch> dispatches;
      core::Status status = dispatches_of(chunk, dispatches);
      if (status.ok()) status = webgpu::submit(*device_, dispatches);
      if (!status.ok()) return status;
    }
    return {};
  }

 private:
  static core::Status check(const char* name, const Range& range, std::uint64_t needed) {
    if (needed == 0) return {};
    if (range.buffer == nullptr) {
      return core::refuse("use", name, "no buffer", "one of " + std::to_string(needed) + " bytes");
    }
    if (range.size < needed) {
      return core::refuse("use", std::string("size of ") + name, std::to_string(range.size),
                          "at least " + std::to_string(needed));
    }
    if (range.offset % kRangeAlignment != 0) {
      return core::refuse("use", std::string("offset of ") + name, std::to_string(range.offset),
                          "a multiple of 256");
    }
    return {};
  }

  static Bound bound(const Range& range) {
    return {static_cast<WGPUBuffer>(range.buffer), range.offset, range.size};
  }

  core::Status dispatches_of(int chunk, std::span<const BoundDispatch>& dispatches) const {
    if (dispatches_.empty()) {
      return core::refuse("record", "scratch memory", "none", "use() before");
    }
    std::size_t first = 0;
    for (int n = 0; n < chunk; ++n) first += chunks_[static_cast<std::size_t>(n)];
    dispatches = std::span(dispatches_).subspan(first, chunks_[static_cast<std::size_t>(chunk)]);
    return {};
  }

  std::shared_ptr<Device> device_;
  Work work_;
  std::vector<std::size_t> chunks_;
  std::vector<BoundDispatch> dispatches_;
};

core::Status finish(std::shared_ptr<Device> device, core::Status status, Work work,
                    std::unique_ptr<Recorder>& recorder) {
  if (!status.ok()) return status;
  auto made = std::make_unique<WorkRecorder>(std::move(device), std::move(work));
  status = made->compile();
  if (status.ok()) recorder = std::move(made);
  return status;
}

template <class A>
core::Status make_operation(std::shared_ptr<Device> device, const A& arguments,
                            std::unique_ptr<Recorder>& recorder) {
  Work work;
  core::Status status = make_work(arguments, device->facts(), work);
  return finish(std::move(device), std::move(status), std::move(work), recorder);
}

}  // namespace

core::Status wrap(const Handles& handles, std::shared_ptr<Device>& device) {
  return Device::wrap(handles, device);
}

std::string text_of(const Device& device) {
  return to_string(device.facts());
}

core::Status make_recorder(std::shared_ptr<Device> device, Pass pass, const Problem& problem,
                           const Arguments& arguments, std::unique_ptr<Recorder>& recorder) {
  const std::string why = refusal(problem, device->facts());
  if (!why.empty()) return core::Status::unsupported("webgpu: " + why);
  Work work;
  core::Status status = make_work(WebGpuPlan(pass, problem, device->facts()), arguments, work);
  return finish(std::move(device), std::move(status), std::move(work), recorder);
}

core::Status make_recorder(std::shared_ptr<Device> device, const MergeArguments& arguments,
                           std::unique_ptr<Recorder>& recorder) {
  return make_operation(std::move(device), arguments, recorder);
}

core::Status make_recorder(std::shared_ptr<Device> device, const MergeBackwardArguments& arguments,
                           std::unique_ptr<Recorder>& recorder) {
  return make_operation(std::move(device), arguments, recorder);
}

core::Status make_recorder(std::shared_ptr<Device> device, const RopeArguments& arguments,
                           std::unique_ptr<Recorder>& recorder) {
  return make_operation(std::move(device), arguments, recorder);
}

}  // namespace attn::webgpu
