// Device: a WebGPU device, opened by libattn or by the caller, with its pipelines and memory.
// DeviceFacts: the properties of a device that plans depend on.
#pragma once

#include <atomic>
#include <attn/webgpu.hpp>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "core/status.hpp"
#include "webgpu/host/provider.hpp"
#include "webgpu/host/scopes.hpp"

namespace attn::webgpu {

class Pipelines;
class Pool;

enum class AdapterType { discrete, integrated, cpu, unknown };

// Sizes in bytes. Limits are those of the device. libattn requests all that the adapter has.
struct DeviceFacts {
  std::string name;     // "llvmpipe (LLVM 15.0.6, 256 bits)"
  std::string backend;  // "vulkan", "metal", "d3d12", ...
  std::string driver;   // "Mesa 22.3.6 (LLVM 15.0.6)"; empty if unknown
  AdapterType type = AdapterType::unknown;
  ProviderKind provider = ProviderKind::wgpu_native;
  std::uint64_t max_buffer_bytes = 0;
  std::uint64_t max_storage_binding_bytes = 0;
  std::uint64_t max_uniform_binding_bytes = 0;
  std::uint32_t storage_alignment = 256;  // of a storage binding's offset
  std::uint32_t uniform_alignment = 256;  // of a uniform binding's offset
  std::uint32_t max_storage_buffers = 0;  // per dispatch
  std::uint32_t workgroup_bytes = 0;      // var<workgroup> per workgroup
  std::uint32_t max_grid = 0;             // workgroups in each dimension
  bool has_subgroups = false;
  // Measured with workgroups of 128 threads. 0 without subgroups, or if sizes differed within the
  // dispatch.
  std::uint32_t subgroup_size = 0;
  // Whether local_invocation_index % subgroup_size is subgroup_invocation_id, and the subgroups of
  // a workgroup are in the order of local indices.
  bool subgroup_linear = false;
  bool has_f16 = false;
  bool has_timestamps = false;
  double submission_flops = 2e8;  // limit of one submission (limits.hpp)
  bool checks = true;             // kernels are compiled with bounds checks
  bool unrolls = false;           // marked loops of kernels are unrolled (unroll.hpp)

  bool operator==(const DeviceFacts&) const = default;
};

// The properties that an adapter or device reports. Does not set subgroup_size and subgroup_linear.
DeviceFacts read_facts(const Provider& provider, const WGPUAdapterInfo& info,
                       const WGPULimits& limits);
// The feature that enables subgroups with this provider.
WGPUFeatureName subgroups_feature(const Provider& provider);

// "llvmpipe (LLVM 15.0.6, 256 bits) (vulkan, cpu, 32 KiB, subgroups of 8, f16)"
std::string to_string(const DeviceFacts& facts);
const char* to_string(AdapterType type);

class Device {
 public:
  // Opens a device. Among the adapters whose name contains `adapter` (all, if it is empty), it
  // prefers the first discrete GPU, then an integrated GPU, then a CPU.
  static core::Status open(const Provider& provider, std::string_view adapter,
                           std::shared_ptr<Device>& device);
  // Wraps the caller's device; its features and limits are those that the caller requested.
  static core::Status wrap(const Handles& handles, std::shared_ptr<Device>& device);
  // The process's device. ATTN_WEBGPU_ADAPTER selects its adapter by name. The first call opens it.
  // After it is lost, the next call opens another.
  static core::Status process(std::shared_ptr<Device>& device);

  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  [[nodiscard]] const Provider& provider() const { return provider_; }
  [[nodiscard]] const ProviderApi& api() const { return provider_.api(); }
  [[nodiscard]] WGPUDevice handle() const { return device_; }
  [[nodiscard]] WGPUQueue queue() const { return queue_; }
  [[nodiscard]] WGPUInstance instance() const { return instance_; }
  [[nodiscard]] const DeviceFacts& facts() const { return facts_; }
  [[nodiscard]] bool own() const { return own_; }
  [[nodiscard]] Scopes& scopes() { return scopes_; }
  [[nodiscard]] Pipelines& pipelines() { return *pipelines_; }
  [[nodiscard]] Pool& pool() { return *pool_; }

  // Not ok if the device is lost; the message is the provider's.
  [[nodiscard]] core::Status alive() const;
  // Called by Scopes and by callbacks.
  void mark_lost(std::string_view message) const;
  // The first error since the last call that no scope caught.
  [[nodiscard]] core::Status take_uncaptured() const;

  // Waits for an asynchronous operation of the provider. Dawn returns a future; wgpu-native calls
  // back inside of the call or of a poll.
  core::Status wait_for(WGPUFuture future, const std::atomic<bool>& done) const;

  // Measures the rate of fused multiply-adds, in operations per second. 0 if that fails.
  double measure_rate();

 private:
  struct Events;  // written by callbacks, which may come after the device is gone
  explicit Device(const Provider& provider);
  core::Status create_instance();
  core::Status request(WGPUAdapter adapter);
  void start_caches();
  void probe_subgroups();  // sets facts
  static void on_lost(const WGPUDevice* device, WGPUDeviceLostReason reason, WGPUStringView message,
                      void* events, void*);
  static void on_uncaptured(const WGPUDevice* device, WGPUErrorType type, WGPUStringView message,
                            void* events, void*);

  const Provider& provider_;
  WGPUInstance instance_ = nullptr;
  WGPUDevice device_ = nullptr;
  WGPUQueue queue_ = nullptr;
  bool own_ = false;
  DeviceFacts facts_;
  Events* events_;  // never freed
  Scopes scopes_;
  std::unique_ptr<Pipelines> pipelines_;
  std::unique_ptr<Pool> pool_;
};

}  // namespace attn::webgpu
