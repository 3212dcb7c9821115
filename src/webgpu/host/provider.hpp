// Provider: an implementation of webgpu.h (wgpu-native, or Dawn if its symbols match), opened at
// run time into a table of typed functions. It is searched in this order: the file or folder in
// ATTN_WGPU; libraries that the process has loaded; its name on the loader's path; the `wgpu` wheel
// next to libattn's package. If none is found, there is a reason.
#pragma once

#include <webgpu.h>
// Must come after webgpu.h, which it extends.
#include <wgpu.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.hpp"

namespace attn::webgpu {

// Functions that both providers must have. wgpu-native 29 exports more functions of webgpu.h but
// aborts the process in them, so they are left out: wgpu*SetLabel, wgpuBufferGetMapState,
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

// Functions that only wgpu-native has (wgpu.h); null with Dawn.
#define ATTN_WEBGPU_NATIVE_FUNCTIONS(X)  \
  X(wgpuDeviceCreateShaderModuleTrusted) \
  X(wgpuDevicePoll)                      \
  X(wgpuGetVersion)                      \
  X(wgpuInstanceEnumerateAdapters)       \
  X(wgpuQueueGetTimestampPeriod)         \
  X(wgpuQueueSubmitForIndex)

// Functions used only with Dawn; null with wgpu-native, which aborts the process in them.
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

// Version 29 has the layout of our webgpu.h and shader modules without loop counters.
inline constexpr std::uint32_t kNeededWgpuMajor = 29;

// Returns the address of a function of webgpu.h, or null. dlsym or an engine's own.
using Lookup = void* (*)(const char* name);

class Provider {
 public:
  struct Opened;
  // The process's provider, opened by the first call and kept; null with the reason.
  static const Provider* get(std::string& reason);
  // Opens the first usable library of this list. get() calls it once.
  static Opened open(std::span<const std::string> libraries);
  // A provider from the caller's lookup. The caller keeps its library loaded. Null: what the
  // process has loaded. The same lookup returns the same provider.
  static const Provider* of(Lookup lookup, std::string& reason);
  // A provider from the functions that `lookup` finds, or, in tests, from a given table.
  static Opened from(Lookup lookup);
  static Opened from(const ProviderApi& api, ProviderKind kind);
  // Where get() looks, in order. An empty string: what the process has loaded.
  static std::vector<std::string> candidates();

  [[nodiscard]] const ProviderApi& api() const { return api_; }
  [[nodiscard]] ProviderKind kind() const { return kind_; }
  [[nodiscard]] bool native() const { return kind_ == ProviderKind::wgpu_native; }
  [[nodiscard]] std::uint32_t version() const { return version_; }  // 0x1d000101; 0 on Dawn
  [[nodiscard]] const std::string& path() const { return path_; }   // empty if not from a file

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

// Conversions from and to WGPUStringView.
inline std::string_view text_of(WGPUStringView text) {
  if (text.data == nullptr) return {};
  return text.length == WGPU_STRLEN ? std::string_view(text.data)
                                    : std::string_view(text.data, text.length);
}
inline WGPUStringView view_of(std::string_view text) {
  return {text.data(), text.size()};
}

}  // namespace attn::webgpu
