// Opens and wraps devices and tracks their loss; see device.hpp.
#include "webgpu/host/device.hpp"

#include <chrono>
#include <cstdlib>
#include <thread>
#include <vector>

#include "webgpu/host/buffers.hpp"
#include "webgpu/host/limits.hpp"
#include "webgpu/host/pipelines.hpp"

namespace attn::webgpu {
namespace {

constexpr WGPUInstanceBackend kBackends =
    WGPUInstanceBackend_Vulkan | WGPUInstanceBackend_Metal | WGPUInstanceBackend_DX12;

core::Status no_device(std::string message) {
  return core::Status::unsupported("webgpu: " + std::move(message));
}

// Lower is preferred.
int rank(AdapterType type) {
  return type == AdapterType::unknown ? 3 : static_cast<int>(type);
}

struct Adapter {
  WGPUAdapter handle = nullptr;
  std::string name;
  AdapterType type = AdapterType::unknown;
};

Adapter describe(const Provider& provider, WGPUAdapter handle) {
  WGPUAdapterInfo info = WGPU_ADAPTER_INFO_INIT;
  provider.api().wgpuAdapterGetInfo(handle, &info);
  const DeviceFacts facts = read_facts(provider, info, WGPULimits{});
  provider.api().wgpuAdapterInfoFreeMembers(info);
  return {handle, facts.name, facts.type};
}

template <class Handle>
struct Answer {
  std::atomic<bool> done = false;
  Handle handle = nullptr;
  std::string message;
};

void on_adapter(WGPURequestAdapterStatus, WGPUAdapter adapter, WGPUStringView message, void* answer,
                void*) {
  auto& got = *static_cast<Answer<WGPUAdapter>*>(answer);
  got.handle = adapter;
  got.message = text_of(message);
  got.done = true;
}

void on_device(WGPURequestDeviceStatus status, WGPUDevice device, WGPUStringView message,
               void* answer, void*) {
  auto& got = *static_cast<Answer<WGPUDevice>*>(answer);
  got.handle = status == WGPURequestDeviceStatus_Success ? device : nullptr;
  got.message = text_of(message);
  got.done = true;
}

// wgpu-native lists its adapters. From Dawn, a regular and a fallback adapter are requested.
std::vector<Adapter> list_adapters(const Device& device) {
  const Provider& provider = device.provider();
  const ProviderApi& api = provider.api();
  std::vector<Adapter> adapters;
  if (provider.native()) {
    WGPUInstanceEnumerateAdapterOptions options{};
    options.backends = kBackends;
    std::vector<WGPUAdapter> handles(
        api.wgpuInstanceEnumerateAdapters(device.instance(), &options, nullptr));
    if (!handles.empty()) {
      api.wgpuInstanceEnumerateAdapters(device.instance(), &options, handles.data());
    }
    for (WGPUAdapter handle : handles) adapters.push_back(describe(provider, handle));
    return adapters;
  }
  for (const bool fallback : {false, true}) {
    Answer<WGPUAdapter> answer;
    WGPURequestAdapterOptions options = WGPU_REQUEST_ADAPTER_OPTIONS_INIT;
    options.powerPreference = WGPUPowerPreference_HighPerformance;
    options.forceFallbackAdapter = fallback ? WGPU_TRUE : WGPU_FALSE;
    WGPURequestAdapterCallbackInfo callback = WGPU_REQUEST_ADAPTER_CALLBACK_INFO_INIT;
    callback.mode = WGPUCallbackMode_WaitAnyOnly;
    callback.callback = on_adapter;
    callback.userdata1 = &answer;
    const WGPUFuture future = api.wgpuInstanceRequestAdapter(device.instance(), &options, callback);
    if (device.wait_for(future, answer.done).ok() && answer.handle != nullptr) {
      adapters.push_back(describe(provider, answer.handle));
    }
  }
  return adapters;
}

bool contains(std::string_view text, std::string_view part) {
  const auto lower = [](std::string_view any) {
    std::string made(any);
    for (char& c : made) {
      if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    }
    return made;
  };
  return lower(text).find(lower(part)) != std::string::npos;
}

}  // namespace

struct Device::Events {
  std::mutex mutex;
  std::atomic<bool> lost = false;
  std::string lost_message;
  std::string uncaptured;
};

Device::Device(const Provider& provider) : provider_(provider), scopes_(*this) {
  static std::mutex mutex;
  static auto& all = *new std::vector<std::unique_ptr<Events>>;
  const std::lock_guard<std::mutex> lock(mutex);
  events_ = all.emplace_back(std::make_unique<Events>()).get();
}

Device::~Device() {
  pool_.reset();
  pipelines_.reset();
  if (queue_ != nullptr) api().wgpuQueueRelease(queue_);
  if (device_ != nullptr) api().wgpuDeviceRelease(device_);
  if (own_ && instance_ != nullptr) api().wgpuInstanceRelease(instance_);
}

void Device::on_lost(const WGPUDevice*, WGPUDeviceLostReason, WGPUStringView message, void* events,
                     void*) {
  auto& told = *static_cast<Events*>(events);
  const std::lock_guard<std::mutex> lock(told.mutex);
  if (told.lost) return;
  told.lost_message = text_of(message);
  told.lost = true;
}

void Device::on_uncaptured(const WGPUDevice*, WGPUErrorType, WGPUStringView message, void* events,
                           void*) {
  auto& told = *static_cast<Events*>(events);
  const std::lock_guard<std::mutex> lock(told.mutex);
  if (told.uncaptured.empty()) told.uncaptured = text_of(message);
}

core::Status Device::alive() const {
  if (!events_->lost) return {};
  const std::lock_guard<std::mutex> lock(events_->mutex);
  return {ErrorCode::device_error,
          "webgpu: the device was lost (" + facts_.name + "): " + events_->lost_message};
}

void Device::mark_lost(std::string_view message) const {
  on_lost(nullptr, WGPUDeviceLostReason_Unknown, view_of(message), events_, nullptr);
}

core::Status Device::take_uncaptured() const {
  const std::lock_guard<std::mutex> lock(events_->mutex);
  if (events_->uncaptured.empty()) return {};
  std::string message = "webgpu: " + events_->uncaptured;
  events_->uncaptured.clear();
  return {ErrorCode::device_error, std::move(message)};
}

core::Status Device::wait_for(WGPUFuture future, const std::atomic<bool>& done) const {
  if (provider_.native()) {
    // The queue may be empty before another thread's poll has run its callbacks.
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (!done) {
      core::Status lost = alive();
      if (!lost.ok()) return lost;
      const bool empty = (api().wgpuDevicePoll(device_, WGPU_TRUE, nullptr) & 1) != 0;
      if (done || !empty) continue;
      if (std::chrono::steady_clock::now() > deadline) {
        return {ErrorCode::device_error, "webgpu: the provider never called back"};
      }
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    return {};
  }
  if (instance_ == nullptr) {
    return core::Status::invalid(
        "webgpu: instance: found null; accepted the WGPUInstance of the "
        "device, without which Dawn can't wait");
  }
  // Polls, because timeouts other than 0 need a feature of the instance.
  while (!done) {
    WGPUFutureWaitInfo info{future, WGPU_FALSE};
    const WGPUWaitStatus status = api().wgpuInstanceWaitAny(instance_, 1, &info, 0);
    if (status == WGPUWaitStatus_Error) {
      return {ErrorCode::device_error, "webgpu: wgpuInstanceWaitAny failed"};
    }
    if (!done) std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  return {};
}

core::Status Device::create_instance() {
  // Without OpenGL: it prints messages if there is no display, and offers nothing over the others.
  WGPUInstanceExtras extras{};
  extras.chain.sType = static_cast<WGPUSType>(WGPUSType_InstanceExtras);
  extras.backends = kBackends;
  extras.flags = WGPUInstanceFlag_Default;
  WGPUInstanceDescriptor descriptor = WGPU_INSTANCE_DESCRIPTOR_INIT;
  if (provider_.native()) descriptor.nextInChain = &extras.chain;
  instance_ = api().wgpuCreateInstance(&descriptor);
  own_ = true;
  if (instance_ == nullptr) return no_device("wgpuCreateInstance gave no instance");
  return {};
}

core::Status Device::open(const Provider& provider, std::string_view adapter,
                          std::shared_ptr<Device>& device) {
  const std::shared_ptr<Device> opened(new Device(provider));
  core::Status status = opened->create_instance();
  if (!status.ok()) return status;
  const std::vector<Adapter> adapters = list_adapters(*opened);
  const Adapter* chosen = nullptr;  // the first adapter of the best type
  for (const Adapter& one : adapters) {
    if (!contains(one.name, adapter)) continue;
    if (chosen == nullptr || rank(one.type) < rank(chosen->type)) chosen = &one;
  }
  if (chosen != nullptr) {
    status = opened->request(chosen->handle);
  } else if (adapters.empty()) {
    status = no_device(to_string(provider) + " finds no adapter (Vulkan, Metal or D3D12)");
  } else {
    std::string names;
    for (const Adapter& one : adapters) names.append(names.empty() ? "" : ", ").append(one.name);
    status = no_device("no adapter is named '" + std::string(adapter) + "'; found " + names);
  }
  for (const Adapter& one : adapters) provider.api().wgpuAdapterRelease(one.handle);
  if (status.ok()) device = opened;
  return status;
}

core::Status Device::request(WGPUAdapter adapter) {
  WGPULimits limits = WGPU_LIMITS_INIT;
  api().wgpuAdapterGetLimits(adapter, &limits);
  WGPUAdapterInfo info = WGPU_ADAPTER_INFO_INIT;
  api().wgpuAdapterGetInfo(adapter, &info);
  facts_ = read_facts(provider_, info, limits);
  api().wgpuAdapterInfoFreeMembers(info);

  std::vector<WGPUFeatureName> features;
  const auto want = [&](WGPUFeatureName feature, bool& has) {
    has = api().wgpuAdapterHasFeature(adapter, feature) != WGPU_FALSE;
    if (has) features.push_back(feature);
  };
  want(subgroups_feature(provider_), facts_.has_subgroups);
  want(WGPUFeatureName_ShaderF16, facts_.has_f16);
  want(WGPUFeatureName_TimestampQuery, facts_.has_timestamps);

  WGPUDeviceDescriptor descriptor = WGPU_DEVICE_DESCRIPTOR_INIT;
  descriptor.label = view_of("libattn");
  descriptor.requiredFeatureCount = features.size();
  descriptor.requiredFeatures = features.data();
  descriptor.requiredLimits = &limits;
  descriptor.deviceLostCallbackInfo.mode = WGPUCallbackMode_AllowSpontaneous;
  descriptor.deviceLostCallbackInfo.callback = on_lost;
  descriptor.deviceLostCallbackInfo.userdata1 = events_;
  descriptor.uncapturedErrorCallbackInfo.callback = on_uncaptured;
  descriptor.uncapturedErrorCallbackInfo.userdata1 = events_;
  Answer<WGPUDevice> answer;
  WGPURequestDeviceCallbackInfo callback = WGPU_REQUEST_DEVICE_CALLBACK_INFO_INIT;
  callback.mode = WGPUCallbackMode_WaitAnyOnly;
  callback.callback = on_device;
  callback.userdata1 = &answer;
  const WGPUFuture future = api().wgpuAdapterRequestDevice(adapter, &descriptor, callback);
  if (!provider_.native()) {
    core::Status waited = wait_for(future, answer.done);
    if (!waited.ok()) return waited;
  }
  if (answer.handle == nullptr) return no_device(facts_.name + ": " + answer.message);
  device_ = answer.handle;
  queue_ = api().wgpuDeviceGetQueue(device_);
  start_caches();
  return {};
}

core::Status Device::wrap(const Handles& handles, std::shared_ptr<Device>& device) {
  if (handles.device == nullptr) {
    return core::Status::invalid("webgpu: device: found null; accepted a WGPUDevice");
  }
  std::string reason;
  const Provider* provider = Provider::of(handles.lookup, reason);
  if (provider == nullptr) return no_device(std::move(reason));
  if (!provider->native() && handles.instance == nullptr) {
    return core::Status::invalid(
        "webgpu: instance: found null; accepted the WGPUInstance of the "
        "device, without which Dawn can't wait");
  }
  const std::shared_ptr<Device> wrapped(new Device(*provider));
  const ProviderApi& api = provider->api();
  wrapped->instance_ = static_cast<WGPUInstance>(handles.instance);
  wrapped->device_ = static_cast<WGPUDevice>(handles.device);
  api.wgpuDeviceAddRef(wrapped->device_);
  if (handles.queue != nullptr) {
    wrapped->queue_ = static_cast<WGPUQueue>(handles.queue);
    api.wgpuQueueAddRef(wrapped->queue_);
  } else {
    wrapped->queue_ = api.wgpuDeviceGetQueue(wrapped->device_);
  }
  WGPULimits limits = WGPU_LIMITS_INIT;
  api.wgpuDeviceGetLimits(wrapped->device_, &limits);
  WGPUAdapterInfo info = WGPU_ADAPTER_INFO_INIT;
  if (handles.adapter != nullptr) {
    api.wgpuAdapterGetInfo(static_cast<WGPUAdapter>(handles.adapter), &info);
  } else if (!provider->native()) {
    api.wgpuDeviceGetAdapterInfo(wrapped->device_, &info);
  }
  DeviceFacts& facts = wrapped->facts_;
  facts = read_facts(*provider, info, limits);
  api.wgpuAdapterInfoFreeMembers(info);
  const auto has = [&](WGPUFeatureName feature) {
    return api.wgpuDeviceHasFeature(wrapped->device_, feature) != WGPU_FALSE;
  };
  facts.has_subgroups = has(subgroups_feature(*provider));
  facts.has_f16 = has(WGPUFeatureName_ShaderF16);
  facts.has_timestamps = has(WGPUFeatureName_TimestampQuery);
  wrapped->start_caches();
  core::Status status = wrapped->alive();
  if (status.ok()) device = wrapped;
  return status;
}

core::Status Device::process(std::shared_ptr<Device>& device) {
  static std::mutex mutex;
  static auto& kept = *new std::shared_ptr<Device>;  // never freed: used until the process ends
  static auto& refusal = *new core::Status;          // kept: later calls do not search again
  const std::lock_guard<std::mutex> lock(mutex);
  if (!refusal.ok()) return refusal;
  if (kept == nullptr || !kept->alive().ok()) {
    std::string reason;
    const Provider* provider = Provider::get(reason);
    const char* adapter = std::getenv("ATTN_WEBGPU_ADAPTER");
    core::Status status = provider == nullptr
                              ? no_device(std::move(reason))
                              : open(*provider, adapter == nullptr ? "" : adapter, kept);
    if (!status.ok()) {
      if (kept == nullptr) refusal = status;
      return status;
    }
  }
  device = kept;
  return {};
}

void Device::start_caches() {
  // Shader compilers of CPU drivers take several times as long for unrolled loops.
  const char* unroll = std::getenv("ATTN_WEBGPU_UNROLL");
  facts_.unrolls =
      unroll == nullptr ? facts_.type != AdapterType::cpu : std::string_view(unroll) != "0";
  const char* checks = std::getenv("ATTN_WEBGPU_CHECKS");
  facts_.checks =
      checks == nullptr ? facts_.type == AdapterType::cpu : std::string_view(checks) != "0";
  pipelines_ = std::make_unique<Pipelines>(*this, kernel_sources());
  pool_ = std::make_unique<Pool>(*this);
  const char* subgroups = std::getenv("ATTN_WEBGPU_SUBGROUPS");
  if (subgroups != nullptr && std::string_view(subgroups) == "0") facts_.has_subgroups = false;
  if (facts_.has_subgroups) probe_subgroups();
  // Measured on GPUs only: on a CPU the measurement could take seconds.
  const bool is_gpu =
      facts_.type == AdapterType::discrete || facts_.type == AdapterType::integrated;
  facts_.submission_flops = flops_of_submission(facts_.type, is_gpu ? measure_rate() : 0.0);
}

}  // namespace attn::webgpu
