// libattn's own submissions: encoding, waiting, and time on the device; see dispatch.hpp.
#include <array>

#include "webgpu/host/buffers.hpp"
#include "webgpu/host/dispatch.hpp"
#include "webgpu/host/encoder.hpp"

namespace attn::webgpu {
namespace {

// Timestamps at the begin and end of a pass.
class PassTime {
 public:
  explicit PassTime(Device& device) : device_(device) {}
  ~PassTime() {
    if (queries_ != nullptr) device_.api().wgpuQuerySetRelease(queries_);
  }
  PassTime(const PassTime&) = delete;
  PassTime& operator=(const PassTime&) = delete;

  core::Status create() {
    WGPUQuerySetDescriptor descriptor = WGPU_QUERY_SET_DESCRIPTOR_INIT;
    descriptor.type = WGPUQueryType_Timestamp;
    descriptor.count = 2;
    core::Status status = device_.scopes().run("creating timestamps", [&] {
      queries_ = device_.api().wgpuDeviceCreateQuerySet(device_.handle(), &descriptor);
    });
    if (!status.ok()) return status;
    writes_.querySet = queries_;
    writes_.beginningOfPassWriteIndex = 0;
    writes_.endOfPassWriteIndex = 1;
    return Buffer::create(device_, 2 * sizeof(std::uint64_t),
                          WGPUBufferUsage_QueryResolve | WGPUBufferUsage_CopySrc, ticks_);
  }

  [[nodiscard]] const WGPUPassTimestampWrites* writes() const { return &writes_; }

  void resolve(WGPUCommandEncoder encoder) const {
    device_.api().wgpuCommandEncoderResolveQuerySet(encoder, queries_, 0, 2, ticks_.handle(), 0);
  }

  core::Status read(double& seconds) const {
    std::array<std::uint64_t, 2> ticks{};
    core::Status status =
        download(device_, ticks_.handle(), 0, std::as_writable_bytes(std::span(ticks)));
    const ProviderApi& api = device_.api();
    const double period =
        api.wgpuQueueGetTimestampPeriod != nullptr
            ? static_cast<double>(api.wgpuQueueGetTimestampPeriod(device_.queue()))
            : 1.0;
    seconds = static_cast<double>(ticks[1] - ticks[0]) * period * 1e-9;
    return status;
  }

 private:
  Device& device_;
  WGPUQuerySet queries_ = nullptr;
  Buffer ticks_;
  WGPUPassTimestampWrites writes_ = WGPU_PASS_TIMESTAMP_WRITES_INIT;
};

core::Status submit_recorded(Device& device, std::span<const BoundDispatch> dispatches,
                             const PassTime* time) {
  WGPUCommandEncoder encoder = nullptr;
  core::Status status = create_encoder(device, encoder);
  if (!status.ok()) return status;
  status = record_pass(device, dispatches, encoder, time == nullptr ? nullptr : time->writes());
  if (status.ok() && time != nullptr) {
    status = device.scopes().run("resolving timestamps", [&] { time->resolve(encoder); });
  }
  if (!status.ok()) {
    device.api().wgpuCommandEncoderRelease(encoder);
    return status;
  }
  return finish_and_submit(device, "recording a call", encoder);
}

void on_work_done(WGPUQueueWorkDoneStatus, WGPUStringView, void* done, void*) {
  *static_cast<std::atomic<bool>*>(done) = true;
}

}  // namespace

core::Status create_encoder(Device& device, WGPUCommandEncoder& encoder) {
  core::Status status = device.alive();
  if (!status.ok()) return status;
  WGPUCommandEncoderDescriptor descriptor = WGPU_COMMAND_ENCODER_DESCRIPTOR_INIT;
  descriptor.label = view_of("libattn");
  status = device.scopes().run("creating an encoder", [&] {
    encoder = device.api().wgpuDeviceCreateCommandEncoder(device.handle(), &descriptor);
  });
  if (!status.ok() && encoder != nullptr) device.api().wgpuCommandEncoderRelease(encoder);
  return status;
}

core::Status finish_and_submit(Device& device, std::string_view tried, WGPUCommandEncoder encoder) {
  const ProviderApi& api = device.api();
  WGPUCommandBuffer commands = nullptr;
  core::Status status = device.scopes().run(
      tried, [&] { commands = api.wgpuCommandEncoderFinish(encoder, nullptr); });
  api.wgpuCommandEncoderRelease(encoder);
  if (status.ok()) {
    status = device.scopes().run("submitting",
                                 [&] { api.wgpuQueueSubmit(device.queue(), 1, &commands); });
  }
  if (commands != nullptr) api.wgpuCommandBufferRelease(commands);
  return status;
}

core::Status submit(Device& device, std::span<const BoundDispatch> dispatches, double* seconds) {
  if (seconds != nullptr) *seconds = 0;
  if (seconds == nullptr || !device.facts().has_timestamps) {
    core::Status status = submit_recorded(device, dispatches, nullptr);
    return status.ok() && seconds != nullptr ? wait(device) : status;
  }
  PassTime time(device);
  core::Status status = time.create();
  if (status.ok()) status = submit_recorded(device, dispatches, &time);
  return status.ok() ? time.read(*seconds) : status;
}

core::Status wait(Device& device) {
  core::Status status = device.alive();
  if (!status.ok()) return status;
  const ProviderApi& api = device.api();
  if (device.provider().native()) {
    // Only the low byte of the result is valid.
    while ((api.wgpuDevicePoll(device.handle(), WGPU_TRUE, nullptr) & 1) == 0) {
      status = device.alive();
      if (!status.ok()) return status;
    }
  } else {
    std::atomic<bool> done = false;
    WGPUQueueWorkDoneCallbackInfo callback = WGPU_QUEUE_WORK_DONE_CALLBACK_INFO_INIT;
    callback.mode = WGPUCallbackMode_WaitAnyOnly;
    callback.callback = on_work_done;
    callback.userdata1 = &done;
    status = device.wait_for(api.wgpuQueueOnSubmittedWorkDone(device.queue(), callback), done);
    if (!status.ok()) return status;
  }
  status = device.alive();
  return status.ok() ? device.take_uncaptured() : status;
}

}  // namespace attn::webgpu
