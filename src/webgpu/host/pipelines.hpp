// Pipelines: compute pipelines of a device, built once per kernel and set of constants.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <shared_mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>

#include "core/status.hpp"
#include "webgpu/host/device.hpp"
#include "webgpu/host/sources.hpp"

namespace attn::webgpu {

inline constexpr int kMaxBindings = 8;  // storage buffers per stage that every device supports
inline constexpr int kMaxConstants = 32;

// Value of an `override` of the source. Names are string literals.
struct Constant {
  const char* name = nullptr;
  double value = 0;
};

// A kernel and how it is compiled. In bind group 0, the uniform parameters are at binding 0 and the
// storage buffers at 1, 2, ...
struct KernelSpec {
  const char* source = "";  // "forward" of forward.wgsl
  const char* entry = "";
  std::array<Access, kMaxBindings> bindings{};
  int num_bindings = 0;
  std::array<Constant, kMaxConstants> constants{};
  int num_constants = 0;
  bool subgroups = false;  // whether the source uses subgroups

  void add_constant(const char* constant, double value) {
    constants[static_cast<std::size_t>(num_constants++)] = {constant, value};
  }
  friend bool operator==(const KernelSpec& a, const KernelSpec& b);
};
std::size_t hash_value(const KernelSpec& spec);
// "forward.wgsl forward (D=64, CAUSAL=1)"
std::string to_string(const KernelSpec& spec);

struct Pipeline {
  const Device* device = nullptr;
  KernelSpec spec;
  WGPUComputePipeline handle = nullptr;
  WGPUBindGroupLayout layout = nullptr;
};

class Pipelines {
 public:
  // `sources` must outlive this; the library uses kernel_sources().
  Pipelines(Device& device, std::span<const Source> sources);
  ~Pipelines();
  Pipelines(const Pipelines&) = delete;
  Pipelines& operator=(const Pipelines&) = delete;

  // Finds the pipeline, or builds it. `pipeline` lives as long as the device. Finding allocates
  // nothing. If the compiler refuses a source: device_error with its position
  // ("forward.wgsl:12:5").
  core::Status get(const KernelSpec& spec, const Pipeline*& pipeline);
  // Builds the missing ones on `threads` threads.
  core::Status get_all(std::span<const KernelSpec> specs, int threads);
  // Null if it was not built yet.
  [[nodiscard]] const Pipeline* find(const KernelSpec& spec) const;

  // A source whose first line is `// enable subgroups` is compiled with that directive if the
  // provider requires it: Dawn does, wgpu-native refuses it. The probe uses this to try both.
  void flip_enable_line() { enable_line_ = !enable_line_; }

 private:
  struct Hash {
    std::size_t operator()(const KernelSpec& spec) const { return hash_value(spec); }
  };
  [[nodiscard]] core::Status check(const KernelSpec& spec) const;
  [[nodiscard]] const Source* source_of(std::string_view name) const;
  [[nodiscard]] WGPUShaderModule find_module(std::string_view source) const;
  core::Status get_module(const Source& source, WGPUShaderModule& module);
  core::Status get_modules(std::span<const KernelSpec> missing, int threads);
  core::Status get_pipelines(std::span<const KernelSpec> missing, int threads);
  // Must be called inside of an error scope. The result may be invalid until the scope is closed.
  [[nodiscard]] WGPUShaderModule create_module(const Source& source) const;
  [[nodiscard]] std::unique_ptr<Pipeline> create_pipeline(const KernelSpec& spec,
                                                          WGPUShaderModule module) const;
  void release(const Pipeline& pipeline) const;
  const Pipeline* keep(std::unique_ptr<Pipeline> pipeline);
  WGPUShaderModule keep_module(std::string_view source, WGPUShaderModule module);

  Device& device_;
  std::span<const Source> sources_;
  bool enable_line_;
  mutable std::shared_mutex mutex_;
  std::unordered_map<KernelSpec, std::unique_ptr<const Pipeline>, Hash> pipelines_;
  std::unordered_map<std::string_view, WGPUShaderModule> modules_;  // by Source::name
};

}  // namespace attn::webgpu
