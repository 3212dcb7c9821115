// Implements webgpu.hpp.
#include "webgpu.hpp"

#include <algorithm>
#include <array>
#include <attn/webgpu.hpp>
#include <chrono>
#include <deque>

#include "core/signature.hpp"
#include "throw_if_failed.hpp"
#include "values.hpp"
#include "webgpu/host/buffers.hpp"
#include "webgpu/host/dispatch.hpp"
#include "webgpu/host/encoder.hpp"
#include "webgpu/host/host_tensors.hpp"

namespace attn::harness {
namespace {

using webgpu::Buffer;

// Workspace shared by the calls of a queue, which run in order.
struct Scratch {
  Buffer info, prepared, staged;
};

webgpu::Range all_of(const Buffer& buffer) {
  return {buffer.handle(), 0, buffer.size()};
}

// Encoders in the order of their work. Encoders that were not submitted are released with this
// object.
class Encoders {
 public:
  explicit Encoders(webgpu::Device& device) : device_(device) {}
  ~Encoders() {
    for (WGPUCommandEncoder encoder : left_) device_.api().wgpuCommandEncoderRelease(encoder);
  }
  Encoders(const Encoders&) = delete;
  Encoders& operator=(const Encoders&) = delete;

  void add() {
    WGPUCommandEncoder encoder = nullptr;
    throw_if_failed(create_encoder(device_, encoder));
    left_.push_back(encoder);
  }
  [[nodiscard]] WGPUCommandEncoder last() const { return left_.back(); }
  void submit() {
    while (!left_.empty()) {
      WGPUCommandEncoder encoder = left_.front();
      left_.pop_front();
      throw_if_failed(finish_and_submit(device_, "running the recorded calls", encoder));
    }
  }

 private:
  webgpu::Device& device_;
  std::deque<WGPUCommandEncoder> left_;
};

// Two timestamps on the queue.
class Marks {
 public:
  explicit Marks(webgpu::Device& device) : device_(device) {
    WGPUQuerySetDescriptor descriptor = WGPU_QUERY_SET_DESCRIPTOR_INIT;
    descriptor.type = WGPUQueryType_Timestamp;
    descriptor.count = kCount;
    throw_if_failed(device.scopes().run("creating timestamps", [&] {
      queries_ = device.api().wgpuDeviceCreateQuerySet(device.handle(), &descriptor);
    }));
    throw_if_failed(Buffer::create(device, kCount * sizeof(std::uint64_t),
                                   WGPUBufferUsage_QueryResolve | WGPUBufferUsage_CopySrc, ticks_));
  }
  ~Marks() {
    if (queries_ != nullptr) device_.api().wgpuQuerySetRelease(queries_);
  }
  Marks(const Marks&) = delete;
  Marks& operator=(const Marks&) = delete;

  // Records the time when everything before has completed: the end of an empty pass.
  void mark(std::uint32_t index, WGPUCommandEncoder encoder) const {
    WGPUPassTimestampWrites writes = WGPU_PASS_TIMESTAMP_WRITES_INIT;
    writes.querySet = queries_;
    writes.endOfPassWriteIndex = index;
    WGPUComputePassDescriptor descriptor = WGPU_COMPUTE_PASS_DESCRIPTOR_INIT;
    descriptor.timestampWrites = &writes;
    const webgpu::ProviderApi& api = device_.api();
    WGPUComputePassEncoder pass = api.wgpuCommandEncoderBeginComputePass(encoder, &descriptor);
    api.wgpuComputePassEncoderEnd(pass);
    api.wgpuComputePassEncoderRelease(pass);
  }
  void resolve(WGPUCommandEncoder encoder) const {
    device_.api().wgpuCommandEncoderResolveQuerySet(encoder, queries_, 0, kCount, ticks_.handle(),
                                                    0);
  }
  // Waits for the device.
  [[nodiscard]] double seconds() const {
    std::array<std::uint64_t, kCount> ticks{};
    throw_if_failed(
        webgpu::download(device_, ticks_.handle(), 0, std::as_writable_bytes(std::span(ticks))));
    const webgpu::ProviderApi& api = device_.api();
    const double period =
        api.wgpuQueueGetTimestampPeriod != nullptr
            ? static_cast<double>(api.wgpuQueueGetTimestampPeriod(device_.queue()))
            : 1.0;  // Dawn resolves to nanoseconds
    return static_cast<double>(ticks[1] - ticks[0]) * period * 1e-9;
  }

 private:
  static constexpr std::uint32_t kCount = 2;

  webgpu::Device& device_;
  WGPUQuerySet queries_ = nullptr;
  Buffer ticks_;
};

}  // namespace

struct WebgpuQueue::State {
  std::shared_ptr<webgpu::Device> device;
  std::shared_ptr<Scratch> scratch;
  std::unique_ptr<Marks> marks;  // null = the device has no timestamps
  double best_rate = 0.0;        // best rate measured by warm_up()

  // Returns scratch buffers of at least this size. Calls that use smaller ones keep those alive.
  std::shared_ptr<Scratch> scratch_for(const webgpu::Needs& needs) {
    if (scratch != nullptr && scratch->info.size() >= needs.info &&
        scratch->prepared.size() >= needs.prepared && scratch->staged.size() >= needs.staged) {
      return scratch;
    }
    auto larger = std::make_shared<Scratch>();
    throw_if_failed(Buffer::create(*device, needs.info, webgpu::kStorageUsage, larger->info));
    throw_if_failed(
        Buffer::create(*device, needs.prepared, webgpu::kStorageUsage, larger->prepared));
    throw_if_failed(Buffer::create(*device, needs.staged, webgpu::kStorageUsage, larger->staged));
    scratch = larger;
    return larger;
  }
};

struct WebgpuCalls::State {
  explicit State(WebgpuQueue::State& at) : queue(at), tensors(*at.device) {}

  struct Call {
    webgpu::Recording recording;
    std::shared_ptr<Scratch> scratch;
    Buffer parameters;
  };
  WebgpuQueue::State& queue;
  webgpu::HostTensors tensors;
  std::int64_t bytes = 0;
  std::vector<Call> calls;
};

WebgpuQueue::WebgpuQueue() : state_(std::make_unique<State>()) {
  State& s = *state_;
  const core::Status status = webgpu::Device::process(s.device);
  if (!status.ok()) throw Error(ErrorCode::unsupported, "webgpu: " + status.message);
  if (s.device->facts().has_timestamps) s.marks = std::make_unique<Marks>(*s.device);
}

WebgpuQueue::~WebgpuQueue() = default;

std::string WebgpuQueue::device_name() const {
  return state_->device->facts().name;
}

std::string WebgpuQueue::driver() const {
  const webgpu::DeviceFacts& facts = state_->device->facts();
  std::string text = to_string(state_->device->provider()) + ", " + facts.backend;
  return facts.driver.empty() ? text : text + ", " + facts.driver;
}

std::int64_t WebgpuQueue::uncached_bytes() const {
  return state_->device->facts().type == webgpu::AdapterType::cpu ? 0 : std::int64_t{256} << 20;
}

void WebgpuQueue::warm_up() {
  constexpr double kNearBest = 0.9;
  constexpr auto kMost = std::chrono::seconds(3);
  constexpr auto kFirst = std::chrono::seconds(1);  // to find the best rate
  webgpu::Device& device = *state_->device;
  if (device.facts().type == webgpu::AdapterType::cpu) return;
  const auto start = std::chrono::steady_clock::now();
  const bool first = state_->best_rate == 0.0;
  while (true) {
    const double rate = device.measure_rate();
    state_->best_rate = std::max(state_->best_rate, rate);
    const auto spent = std::chrono::steady_clock::now() - start;
    const bool up = rate >= kNearBest * state_->best_rate && (!first || spent >= kFirst);
    if (up || rate == 0.0 || spent >= kMost) return;
  }
}

double WebgpuQueue::seconds(std::span<const WebgpuCalls* const> turns) {
  using Clock = std::chrono::steady_clock;
  webgpu::Device& device = *state_->device;
  const Marks* marks = state_->marks.get();
  Encoders encoders(device);
  encoders.add();
  if (marks != nullptr) marks->mark(0, encoders.last());
  for (const WebgpuCalls* turn : turns) {
    const webgpu::Recording& recording = turn->state_->calls.back().recording;
    for (int chunk = 0; chunk < recording.num_chunks(); ++chunk) {
      // A chunk already has the maximum size of a submission.
      if (recording.num_chunks() > 1) encoders.add();
      recording.record(chunk, encoders.last());
    }
  }
  if (marks != nullptr) {
    marks->mark(1, encoders.last());
    marks->resolve(encoders.last());
  }
  const auto start = Clock::now();
  encoders.submit();
  throw_if_failed(wait(device));
  const double on_host = std::chrono::duration<double>(Clock::now() - start).count();
  return marks != nullptr ? marks->seconds() : on_host;
}

WebgpuCalls::WebgpuCalls(WebgpuQueue& queue, const Arguments& host,
                         const std::vector<std::pair<Pass, Problem>>& calls)
    : state_(std::make_unique<State>(*queue.state_)) {
  State& s = *state_;
  std::vector<const void*> known;
  const auto each_tensor = [](Pass pass, const Problem& problem, const auto& visit) {
    for (const core::Slot& slot : core::slots_of(pass, problem)) {
      if (slot.use != core::Use::ignored) visit(slot);
    }
  };
  for (const auto& [pass, problem] : calls) {
    each_tensor(pass, problem, [&](const core::Slot& slot) {
      const TensorView& view = host.*slot.view;
      s.tensors.add(view, slot.written);
      if (!view.given() || std::ranges::find(known, view.data) != known.end()) return;
      known.push_back(view.data);
      s.bytes += num_elements(view) * size_of(view.dtype);
    });
  }
  throw_if_failed(s.tensors.upload());
  for (const auto& [pass, problem] : calls) {
    Arguments there = host;
    for (const core::Slot& slot : core::slots_of(pass, problem)) there.*slot.view = TensorView{};
    each_tensor(pass, problem, [&](const core::Slot& slot) {
      there.*slot.view = s.tensors.on_device(host.*slot.view);
    });
    State::Call& call = s.calls.emplace_back(
        State::Call{webgpu::Recording(s.queue.device, pass, problem, there), nullptr, {}});
    const webgpu::Needs needs = call.recording.needs();
    call.scratch = s.queue.scratch_for(needs);
    throw_if_failed(Buffer::create(*s.queue.device, needs.parameters,
                                   webgpu::kUniformUsage | WGPUBufferUsage_Storage,
                                   call.parameters));
    call.recording.use({.info = all_of(call.scratch->info),
                        .prepared = all_of(call.scratch->prepared),
                        .staged = all_of(call.scratch->staged),
                        .parameters = all_of(call.parameters)});
  }
}

WebgpuCalls::~WebgpuCalls() = default;

void WebgpuCalls::run() {
  for (const State::Call& call : state_->calls) call.recording.submit();
}

void WebgpuCalls::download() {
  throw_if_failed(state_->tensors.download());
}

std::int64_t WebgpuCalls::bytes() const {
  return state_->bytes;
}

std::int64_t WebgpuCalls::extra_bytes() const {
  const webgpu::Needs needs = state_->calls.back().recording.needs();
  return static_cast<std::int64_t>(needs.info + needs.prepared + needs.staged + needs.parameters);
}

}  // namespace attn::harness
