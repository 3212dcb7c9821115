// Provider: an implementation of webgpu.h, opened at run time into a table of typed functions:
// wgpu-native, or Dawn where its symbols match. It is searched in this order: the file or folder
// that ATTN_WGPU names; what the process has loaded; its name (the loader's path); the `wgpu` wheel
// in the folder that has libattn's package. Where there is none, there is a reason.
#pragma once

#include <webgpu.h>
// After webgpu.h: what wgpu-native adds to it.
#include <wgpu.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.hpp"

namespace attn::webgpu {

// What both providers must have. wgpu-native 29 has more functions of webgpu.h by name, but aborts
// the process in them, so they are not here: wgpu*SetLabel, wgpuBufferGetMapState,
// wgpuBufferReadMappedRange, wgpuBufferWriteMappedRange, wgpuDeviceCreateComputePipelineAsync,
// wgpuDeviceGetLostFuture, wgpuGetInstanceFeatures, wgpuHasInstanceFeature, wgpuGetProcAddress,
// wgpuShaderModuleGetCompilationInfo.
#define ATTN_WEBGPU_FUNCTIONS(X)              \
  X(wgpuAdapterGetInfo)                       \
  X(wgpuAdapterGetLimits)                     \
  X(wgpuAdapterHasFeature)                    \
  X(wgpuAdapterInfoFreeMembers)               \
  X(wgpuAdapterRelease)                       \
  X(wgpuAdapterRequestDevice)                 \
  X(wgpuBindGroupLayoutRelease)               \
  X(wgpuBindGroupRelease)                     \
  X(wgpuBufferDestroy)                        \
  X(wgpuBufferGetConstMappedRange)            \
  X(wgpuBufferGetMappedRange)                 \
  X(wgpuBufferGetSize)                        \
  X(wgpuBufferGetUsage)                       \
  X(wgpuBufferMapAsync)                       \
  X(wgpuBufferRelease)                        \
  X(wgpuBufferUnmap)                          \
  X(wgpuCommandBufferRelease)                 \
  X(wgpuCommandEncoderBeginComputePass)       \
  X(wgpuCommandEncoderCopyBufferToBuffer)     \
  X(wgpuCommandEncoderFinish)                 \
  X(wgpuCommandEncoderRelease)                \
  X(wgpuCommandEncoderResolveQuerySet)        \
  X(wgpuComputePassEncoderDispatchWorkgroups) \
  X(wgpuComputePassEncoderEnd)                \
  X(wgpuComputePassEncoderRelease)            \
  X(wgpuComputePassEncoderSetBindGroup)       \
  X(wgpuComputePassEncoderSetPipeline)        \
  X(wgpuComputePipelineRelease)               \
  X(wgpuCreateInstance)                       \
  X(wgpuDeviceAddRef)                         \
  X(wgpuDeviceCreateBindGroup)                \
  X(wgpuDeviceCreateBindGroupLayout)          \
  X(wgpuDeviceCreateBuffer)                   \
  X(wgpuDeviceCreateCommandEncoder)           \
  X(wgpuDeviceCreateComputePipeline)          \
  X(wgpuDeviceCreatePipelineLayout)           \
  X(wgpuDeviceCreateQuerySet)                 \
  X(wgpuDeviceCreateShaderModule)             \
  X(wgpuDeviceDestroy)                        \
  X(wgpuDeviceGetLimits)                      \
  X(wgpuDeviceGetQueue)                       \
  X(wgpuDeviceHasFeature)                     \
  X(wgpuDevicePopErrorScope)                  \
  X(wgpuDevicePushErrorScope)                 \
  X(wgpuDeviceRelease)                        \
  X(wgpuInstanceRelease)                      \
  X(wgpuInstanceRequestAdapter)               \
  X(wgpuPipelineLayoutRelease)                \
  X(wgpuQuerySetRelease)                      \
  X(wgpuQueueAddRef)                          \
  X(wgpuQueueOnSubmittedWorkDone)             \
  X(wgpuQueueRelease)                         \
  X(wgpuQueueSubmit)                          \
  X(wgpuQueueWriteBuffer)                     \
  X(wgpuShaderModuleRelease)

// What only wgpu-native has (wgpu.h); null on Dawn.
#define ATTN_WEBGPU_NATIVE_FUNCTIONS(X)  \
  X(wgpuDeviceCreateShaderModuleTrusted) \
  X(wgpuDevicePoll)                      \
  X(wgpuGetVersion)                      \
  X(wgpuInstanceEnumerateAdapters)       \
  X(wgpuQueueGetTimestampPeriod)         \
  X(wgpuQueueSubmitForIndex)

// What only Dawn may be asked; null on wgpu-native, which aborts the process there.
#define ATTN_WEBGPU_DAWN_FUNCTIONS(X) \
  X(wgpuDeviceGetAdapterInfo)         \
  X(wgpuInstanceWaitAny)

struct ProviderApi {
#define ATTN_WEBGPU_MEMBER(function) decltype(&::function) function = nullptr;
  ATTN_WEBGPU_FUNCTIONS(ATTN_WEBGPU_MEMBER)
  ATTN_WEBGPU_NATIVE_FUNCTIONS(ATTN_WEBGPU_MEMBER)
  ATTN_WEBGPU_DAWN_FUNCTIONS(ATTN_WEBGPU_MEMBER)
#undef ATTN_WEBGPU_MEMBER
};

enum class ProviderKind { wgpu_native, dawn };

// 29 brought the layout of today's webgpu.h and modules without loop counters.
inline constexpr std::uint32_t kNeededWgpuMajor = 29;

// The address of a function of webgpu.h, or null: dlsym's, or an engine's own.
using Lookup = void* (*)(const char* name);

class Provider {
 public:
  struct Opened;
  // The process's provider, opened by the first call and kept; null with the reason.
  static const Provider* get(std::string& reason);
  // Opens the first usable one of these library names and paths; get() does so once.
  static Opened open(std::span<const std::string> libraries);
  // A provider of the caller's, who keeps it loaded; null stands for what the process has loaded.
  // The same lookup gives the same provider.
  static const Provider* of(Lookup lookup, std::string& reason);
  // The functions that `lookup` finds, as they are; for tests a table of their own.
  static Opened from(Lookup lookup);
  static Opened from(const ProviderApi& api, ProviderKind kind);
  // Where get() looks, in order. An empty string stands for what the process has loaded.
  static std::vector<std::string> candidates();

  [[nodiscard]] const ProviderApi& api() const { return api_; }
  [[nodiscard]] ProviderKind kind() const { return kind_; }
  [[nodiscard]] bool native() const { return kind_ == ProviderKind::wgpu_native; }
  [[nodiscard]] std::uint32_t version() const { return version_; }  // 0x1d000101; 0 on Dawn
  [[nodiscard]] const std::string& path() const { return path_; }   // "" = not by a file

 private:
  Provider() = default;

  ProviderApi api_;
  ProviderKind kind_ = ProviderKind::wgpu_native;
  std::uint32_t version_ = 0;
  std::string path_;
};

struct Provider::Opened {
  std::unique_ptr<const Provider> provider;  // null: see reason
  std::string reason;
};

// "wgpu-native 29.0.1.1", "Dawn"
std::string to_string(const Provider& provider);

// WGPUStringView to and fro.
inline std::string_view text_of(WGPUStringView text) {
  if (text.data == nullptr) return {};
  return text.length == WGPU_STRLEN ? std::string_view(text.data)
                                    : std::string_view(text.data, text.length);
}
inline WGPUStringView view_of(std::string_view text) {
  return {text.data(), text.size()};
}

}  // namespace attn::webgpu
