// Device: a WebGPU device with all that libattn keeps for it, opened by libattn or the caller's;
// and DeviceFacts, what plans are pure functions of.
#pragma once

#include <array>
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

// Sizes in bytes. Limits are the device's own, which are the adapter's where libattn opened it.
struct DeviceFacts {
  std::string name;     // "llvmpipe (LLVM 15.0.6, 256 bits)"
  std::string backend;  // "vulkan", "metal", "d3d12", ...
  std::string driver;   // "Mesa 22.3.6 (LLVM 15.0.6)"; empty where it is unknown
  AdapterType type = AdapterType::unknown;
  ProviderKind provider = ProviderKind::wgpu_native;
  std::uint64_t max_buffer_bytes = 0;
  std::uint64_t max_storage_binding_bytes = 0;
  std::uint64_t max_uniform_binding_bytes = 0;
  std::uint32_t storage_alignment = 256;  // of a storage binding's offset
  std::uint32_t uniform_alignment = 256;  // of a uniform binding's offset
  std::uint32_t max_storage_buffers = 0;  // of a dispatch
  std::uint32_t workgroup_bytes = 0;      // var<workgroup> of a workgroup
  std::uint32_t max_threads = 0;          // of a workgroup
  std::array<std::uint32_t, 3> max_workgroup_size{};
  std::uint32_t max_grid = 0;  // workgroups in each dimension
  bool has_subgroups = false;
  // What a dispatch of workgroups of 128 threads saw; 0 without subgroups or where it differed
  // within it.
  std::uint32_t subgroup_size = 0;
  // local_invocation_index % subgroup_size is subgroup_invocation_id, and the subgroups of a
  // workgroup follow each other.
  bool subgroup_linear = false;
  bool has_f16 = false;
  bool has_timestamps = false;
  double submission_flops = 2e8;  // of one submission, at most (limits.hpp)
  bool checks = true;             // kernels are compiled with checks of indices
  bool unrolls = false;           // marked loops of kernels are written out (unroll.hpp)

  bool operator==(const DeviceFacts&) const = default;
};

// What an adapter or a device tells of itself; subgroup_size and subgroup_linear are not asked.
DeviceFacts read_facts(const Provider& provider, const WGPUAdapterInfo& info,
                       const WGPULimits& limits);
// The number of the feature that makes subgroups usable.
WGPUFeatureName subgroups_feature(const Provider& provider);

// "llvmpipe (LLVM 15.0.6, 256 bits) (vulkan, cpu, 32 KiB, subgroups of 8, f16)"
std::string to_string(const DeviceFacts& facts);
const char* to_string(AdapterType type);

class Device {
 public:
  // Opens a device of libattn's own: of the adapters whose name contains `adapter` (empty: of all),
  // the first discrete one, else an integrated one, else a CPU.
  static core::Status open(const Provider& provider, std::string_view adapter,
                           std::shared_ptr<Device>& device);
  // Wraps the caller's device; its features and limits are those that the caller requested.
  static core::Status wrap(const Handles& handles, std::shared_ptr<Device>& device);
  // The process's device, with ATTN_WEBGPU_ADAPTER as the adapter's name. The first call opens it;
  // after it was lost, the next call opens another.
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

  // Whether the device is gone: not ok, with the provider's word.
  [[nodiscard]] core::Status alive() const;
  // For Scopes and the callbacks.
  void mark_lost(std::string_view message) const;
  // The first error that no scope caught since the time before.
  [[nodiscard]] core::Status take_uncaptured() const;

  // Waits for an asynchronous operation of the provider: a future of Dawn's, while wgpu-native
  // calls back inside of the call or of a poll.
  core::Status wait_for(WGPUFuture future, const std::atomic<bool>& done) const;

  // Operations a second of a few milliseconds of multiplying and adding; 0 where that fails.
  double measure_rate();

 private:
  struct Events;  // what callbacks tell; they may come after the device is gone
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
