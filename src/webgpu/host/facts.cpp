// Reads and prints DeviceFacts; see device.hpp.
#include <string>

#include "webgpu/host/device.hpp"

namespace attn::webgpu {
namespace {

const char* backend_name(WGPUBackendType type) {
  switch (type) {
    case WGPUBackendType_D3D11: return "d3d11";
    case WGPUBackendType_D3D12: return "d3d12";
    case WGPUBackendType_Metal: return "metal";
    case WGPUBackendType_Vulkan: return "vulkan";
    case WGPUBackendType_OpenGL: return "opengl";
    case WGPUBackendType_OpenGLES: return "opengles";
    case WGPUBackendType_WebGPU: return "webgpu";
    case WGPUBackendType_Null: return "null";
    default: return "unknown";
  }
}

AdapterType type_of(WGPUAdapterType type) {
  switch (type) {
    case WGPUAdapterType_DiscreteGPU: return AdapterType::discrete;
    case WGPUAdapterType_IntegratedGPU: return AdapterType::integrated;
    case WGPUAdapterType_CPU: return AdapterType::cpu;
    default: return AdapterType::unknown;
  }
}

}  // namespace

const char* to_string(AdapterType type) {
  switch (type) {
    case AdapterType::discrete: return "discrete";
    case AdapterType::integrated: return "integrated";
    case AdapterType::cpu: return "cpu";
    case AdapterType::unknown: break;
  }
  return "unknown";
}

std::string to_string(const DeviceFacts& facts) {
  std::string text = facts.name;
  text.append(" (").append(facts.backend).append(", ").append(to_string(facts.type));
  text.append(", ").append(std::to_string(facts.workgroup_bytes / 1024)).append(" KiB");
  if (facts.subgroup_size != 0) {
    text.append(", subgroups of ").append(std::to_string(facts.subgroup_size));
  } else if (facts.has_subgroups) {
    text.append(", subgroups");
  }
  if (facts.has_f16) text.append(", f16");
  return text.append(")");
}

WGPUFeatureName subgroups_feature(const Provider& provider) {
  // wgpu-native accepts the standard number without an error, but enables nothing.
  return provider.native() ? static_cast<WGPUFeatureName>(WGPUNativeFeature_Subgroup)
                           : WGPUFeatureName_Subgroups;
}

DeviceFacts read_facts(const Provider& provider, const WGPUAdapterInfo& info,
                       const WGPULimits& limits) {
  DeviceFacts facts;
  facts.name = text_of(info.device);
  if (facts.name.empty()) facts.name = text_of(info.description);
  if (facts.name.empty()) facts.name = "an engine's device";
  facts.backend = backend_name(info.backendType);
  facts.driver = text_of(info.description);
  facts.type = type_of(info.adapterType);
  facts.provider = provider.kind();
  facts.max_buffer_bytes = limits.maxBufferSize;
  facts.max_storage_binding_bytes = limits.maxStorageBufferBindingSize;
  facts.max_uniform_binding_bytes = limits.maxUniformBufferBindingSize;
  facts.storage_alignment = limits.minStorageBufferOffsetAlignment;
  facts.uniform_alignment = limits.minUniformBufferOffsetAlignment;
  facts.max_storage_buffers = limits.maxStorageBuffersPerShaderStage;
  facts.workgroup_bytes = limits.maxComputeWorkgroupStorageSize;
  facts.max_grid = limits.maxComputeWorkgroupsPerDimension;
  return facts;
}

}  // namespace attn::webgpu
