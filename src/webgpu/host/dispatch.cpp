// Checks and records dispatches; see dispatch.hpp.
#include "webgpu/host/dispatch.hpp"

#include <string>
#include <string_view>
#include <vector>

#include "webgpu/host/encoder.hpp"

namespace attn::webgpu {
namespace {

using std::to_string;

// Checks one dispatch. A refusal is a status with a message.
class Checker {
 public:
  Checker(const Device& device, const BoundDispatch& dispatch, int index)
      : device_(device), dispatch_(dispatch), index_(index) {}

  core::Status check() {
    const Pipeline* pipeline = dispatch_.pipeline;
    if (pipeline == nullptr || pipeline->device != &device_) {
      return refuse("pipeline", pipeline == nullptr ? "null" : "one of another device",
                    "one of this device");
    }
    core::Status status = check_grid();
    if (status.ok()) status = check_parameters();
    const auto count = static_cast<std::size_t>(pipeline->spec.num_bindings);
    for (std::size_t i = 0; status.ok() && i < count; ++i) status = check_storage(i);
    for (std::size_t i = 0; status.ok() && i < count; ++i) status = check_alias(i);
    return status;
  }

 private:
  [[nodiscard]] core::Status refuse(std::string_view rule, std::string_view found,
                                    std::string_view accepted) const {
    std::string message = "webgpu: dispatch ";
    message.append(to_string(index_));
    if (dispatch_.pipeline != nullptr) {
      message.append(" of ").append(dispatch_.pipeline->spec.source).append(".wgsl");
    }
    message.append(": ").append(rule).append(": found ").append(found);
    message.append("; accepted ").append(accepted);
    return core::Status::invalid(std::move(message));
  }

  [[nodiscard]] core::Status check_grid() const {
    for (const std::uint32_t groups : dispatch_.grid) {
      if (groups > device_.facts().max_grid) {
        return refuse("grid", to_string(groups), "up to " + to_string(device_.facts().max_grid));
      }
    }
    return {};
  }

  struct Rules {
    std::string name;
    WGPUBufferUsage usage;
    const char* usage_name;
    std::uint64_t alignment;
    std::uint64_t multiple;  // of the size
    std::uint64_t most;      // of the size
  };

  [[nodiscard]] core::Status check_range(const Bound& bound, const Rules& rules) const {
    if (bound.buffer == nullptr) return refuse(rules.name, "a null buffer", "a WGPUBuffer");
    if (bound.offset % rules.alignment != 0) {
      return refuse(rules.name + ", offset", to_string(bound.offset),
                    "multiples of " + to_string(rules.alignment));
    }
    if (bound.size == 0 || bound.size % rules.multiple != 0) {
      return refuse(rules.name + ", size", to_string(bound.size),
                    "multiples of " + to_string(rules.multiple) + ", from there on");
    }
    if (bound.size > rules.most) {
      return refuse(rules.name + ", size", to_string(bound.size), "up to " + to_string(rules.most));
    }
    const std::uint64_t size = device_.api().wgpuBufferGetSize(bound.buffer);
    if (bound.offset > size || bound.size > size - bound.offset) {
      return refuse(rules.name + ", last byte", to_string(bound.offset + bound.size),
                    "up to " + to_string(size) + ", the buffer's size");
    }
    if ((device_.api().wgpuBufferGetUsage(bound.buffer) & rules.usage) == 0) {
      return refuse(rules.name, std::string("a buffer without usage ") + rules.usage_name,
                    "one with it");
    }
    return {};
  }

  [[nodiscard]] core::Status check_parameters() const {
    const DeviceFacts& facts = device_.facts();
    return check_range(dispatch_.parameters,
                       {"parameters", WGPUBufferUsage_Uniform, "Uniform", facts.uniform_alignment,
                        16, facts.max_uniform_binding_bytes});
  }

  [[nodiscard]] core::Status check_storage(std::size_t i) const {
    const DeviceFacts& facts = device_.facts();
    return check_range(dispatch_.bound[i],
                       {name(i), WGPUBufferUsage_Storage, "Storage", facts.storage_alignment, 4,
                        facts.max_storage_binding_bytes});
  }

  // WebGPU's usage scopes: a buffer that a dispatch writes must not be bound as read too, and
  // ranges that are written through two bindings must not overlap.
  [[nodiscard]] core::Status check_alias(std::size_t i) const {
    const auto& access = dispatch_.pipeline->spec.bindings;
    const Bound& a = dispatch_.bound[i];
    if (access[i] == Access::write && a.buffer == dispatch_.parameters.buffer) {
      return refuse(name(i) + " and parameters", "one buffer", "two, as it is written to");
    }
    for (std::size_t j = 0; j < i; ++j) {
      const Bound& b = dispatch_.bound[j];
      if (a.buffer != b.buffer) continue;
      const std::string names = name(j) + " and " + name(i);
      if (access[i] != access[j]) {
        return refuse(names, "one buffer, read and written", "two buffers");
      }
      const bool overlap = a.offset < b.offset + b.size && b.offset < a.offset + a.size;
      if (access[i] == Access::write && overlap) {
        return refuse(names, "overlapping ranges that are written", "ranges apart");
      }
    }
    return {};
  }

  static std::string name(std::size_t i) { return "binding " + to_string(i + 1); }

  const Device& device_;
  const BoundDispatch& dispatch_;
  int index_;
};

bool is_empty(const BoundDispatch& dispatch) {
  return dispatch.grid[0] == 0 || dispatch.grid[1] == 0 || dispatch.grid[2] == 0;
}

// Must be called inside of an error scope.
WGPUBindGroup create_bind_group(const Device& device, const BoundDispatch& dispatch) {
  std::array<WGPUBindGroupEntry, 1 + kMaxBindings> entries{};
  const auto num_entries = 1 + static_cast<std::size_t>(dispatch.pipeline->spec.num_bindings);
  for (std::size_t i = 0; i < num_entries; ++i) {
    const Bound& bound = i == 0 ? dispatch.parameters : dispatch.bound[i - 1];
    entries[i].binding = static_cast<std::uint32_t>(i);
    entries[i].buffer = bound.buffer;
    entries[i].offset = bound.offset;
    entries[i].size = bound.size;
  }
  WGPUBindGroupDescriptor descriptor = WGPU_BIND_GROUP_DESCRIPTOR_INIT;
  descriptor.layout = dispatch.pipeline->layout;
  descriptor.entryCount = num_entries;
  descriptor.entries = entries.data();
  return device.api().wgpuDeviceCreateBindGroup(device.handle(), &descriptor);
}

void encode_pass(const ProviderApi& api, std::span<const BoundDispatch> dispatches,
                 std::span<const WGPUBindGroup> groups, WGPUCommandEncoder encoder,
                 const WGPUPassTimestampWrites* timestamps) {
  WGPUComputePassDescriptor descriptor = WGPU_COMPUTE_PASS_DESCRIPTOR_INIT;
  descriptor.label = view_of("libattn");
  descriptor.timestampWrites = timestamps;
  WGPUComputePassEncoder pass = api.wgpuCommandEncoderBeginComputePass(encoder, &descriptor);
  const Pipeline* last = nullptr;
  for (std::size_t i = 0; i < dispatches.size(); ++i) {
    if (groups[i] == nullptr) continue;
    const BoundDispatch& dispatch = dispatches[i];
    if (dispatch.pipeline != last) {
      api.wgpuComputePassEncoderSetPipeline(pass, dispatch.pipeline->handle);
      last = dispatch.pipeline;
    }
    api.wgpuComputePassEncoderSetBindGroup(pass, 0, groups[i], 0, nullptr);
    const auto& grid = dispatch.grid;
    api.wgpuComputePassEncoderDispatchWorkgroups(pass, grid[0], grid[1], grid[2]);
  }
  api.wgpuComputePassEncoderEnd(pass);
  api.wgpuComputePassEncoderRelease(pass);
}

}  // namespace

core::Status check(Device& device, const BoundDispatch& dispatch, int index) {
  return Checker(device, dispatch, index).check();
}

core::Status record_pass(Device& device, std::span<const BoundDispatch> dispatches,
                         WGPUCommandEncoder encoder, const WGPUPassTimestampWrites* timestamps) {
  core::Status status = device.alive();
  for (std::size_t i = 0; status.ok() && i < dispatches.size(); ++i) {
    if (!is_empty(dispatches[i])) status = check(device, dispatches[i], static_cast<int>(i));
  }
  if (!status.ok()) return status;
  const ProviderApi& api = device.api();
  std::vector<WGPUBindGroup> groups(dispatches.size());
  status = device.scopes().run("binding the memory of a call", [&] {
    for (std::size_t i = 0; i < dispatches.size(); ++i) {
      if (!is_empty(dispatches[i])) groups[i] = create_bind_group(device, dispatches[i]);
    }
  });
  if (status.ok()) {
    // Errors inside of a pass are reported when the encoder is finished. Errors of an encoder that
    // is already finished or has an open pass are reported at once.
    status = device.scopes().run(
        "recording a call", [&] { encode_pass(api, dispatches, groups, encoder, timestamps); });
  }
  for (WGPUBindGroup group : groups) {
    if (group != nullptr) api.wgpuBindGroupRelease(group);
  }
  return status;
}

core::Status record(Device& device, std::span<const BoundDispatch> dispatches,
                    WGPUCommandEncoder encoder) {
  if (encoder == nullptr) {
    return core::Status::invalid("webgpu: encoder: found null; accepted a WGPUCommandEncoder");
  }
  return record_pass(device, dispatches, encoder, nullptr);
}

}  // namespace attn::webgpu
