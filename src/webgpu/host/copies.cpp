// Copies between host and device; see buffers.hpp.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <string>

#include "webgpu/host/buffers.hpp"
#include "webgpu/host/encoder.hpp"

namespace attn::webgpu {
namespace {

// wgpuQueueWriteBuffer keeps its staging memory until the next submission. From this size on,
// libattn uses its own staging memory, which it submits and releases at each step. The speed is
// about the same (lavapipe, 64 MiB to the device and back: 150 to 200 ms, writeBuffer 130 to 320
// ms; 2026-11).
constexpr std::uint64_t kMappedFrom = std::uint64_t{1} << 20;
// Bytes of staging memory per step of a long copy.
constexpr std::uint64_t kStep = std::uint64_t{64} << 20;

core::Status check_range(Device& device, WGPUBuffer buffer, std::uint64_t offset,
                         std::uint64_t bytes, WGPUBufferUsage usage, std::string_view what) {
  const auto refuse = [&](const std::string& found, std::string_view accepted) {
    return core::Status::invalid("webgpu: " + std::string(what) + ": found " + found +
                                 "; accepted " + std::string(accepted));
  };
  if (buffer == nullptr) return refuse("a null buffer", "a WGPUBuffer");
  if (offset % 4 != 0) return refuse("offset " + std::to_string(offset), "multiples of 4");
  const std::uint64_t size = device.api().wgpuBufferGetSize(buffer);
  const std::uint64_t rounded = (bytes + 3) / 4 * 4;
  if (offset > size || rounded > size - offset) {
    return refuse("bytes " + std::to_string(offset) + " to " + std::to_string(offset + rounded),
                  "up to " + std::to_string(size) + ", the buffer's size");
  }
  if ((device.api().wgpuBufferGetUsage(buffer) & usage) != usage) {
    return refuse("a buffer without usage " +
                      std::string(usage == WGPUBufferUsage_CopyDst ? "CopyDst" : "CopySrc"),
                  "one with it");
  }
  return {};
}

core::Status copy(Device& device, WGPUBuffer from, std::uint64_t from_offset, WGPUBuffer to,
                  std::uint64_t to_offset, std::uint64_t bytes) {
  return encode_and_submit(device, "copying", [&](WGPUCommandEncoder encoder) {
    device.api().wgpuCommandEncoderCopyBufferToBuffer(encoder, from, from_offset, to, to_offset,
                                                      bytes);
  });
}

core::Status upload_mapped(Device& device, WGPUBuffer buffer, std::uint64_t offset,
                           std::span<const std::byte> bytes) {
  const ProviderApi& api = device.api();
  WGPUBufferDescriptor descriptor = WGPU_BUFFER_DESCRIPTOR_INIT;
  descriptor.usage = WGPUBufferUsage_MapWrite | WGPUBufferUsage_CopySrc;
  descriptor.size = (bytes.size() + 3) / 4 * 4;
  descriptor.mappedAtCreation = WGPU_TRUE;
  WGPUBuffer staging = nullptr;
  core::Status status = device.scopes().run("allocating staging memory", [&] {
    staging = api.wgpuDeviceCreateBuffer(device.handle(), &descriptor);
  });
  if (status.ok()) {
    // Only if the buffer was created: asking for the mapped range of another aborts the process.
    status = device.scopes().run("writing staging memory", [&] {
      auto* to = static_cast<std::byte*>(api.wgpuBufferGetMappedRange(staging, 0, descriptor.size));
      if (to == nullptr) return;
      std::memcpy(to, bytes.data(), bytes.size());
      std::memset(to + bytes.size(), 0, descriptor.size - bytes.size());
      api.wgpuBufferUnmap(staging);
    });
  }
  if (status.ok()) status = copy(device, staging, 0, buffer, offset, descriptor.size);
  if (staging != nullptr) api.wgpuBufferRelease(staging);
  return status;
}

core::Status upload_small(Device& device, WGPUBuffer buffer, std::uint64_t offset,
                          std::span<const std::byte> bytes) {
  const std::uint64_t whole = bytes.size() / 4 * 4;
  std::array<std::byte, 4> last{};
  std::memcpy(last.data(), bytes.data() + whole, bytes.size() - whole);
  return device.scopes().run("writing to a buffer", [&] {
    const ProviderApi& api = device.api();
    if (whole > 0) {
      api.wgpuQueueWriteBuffer(device.queue(), buffer, offset, bytes.data(), whole);
    }
    if (whole < bytes.size()) {
      api.wgpuQueueWriteBuffer(device.queue(), buffer, offset + whole, last.data(), last.size());
    }
  });
}

struct Mapped {
  std::atomic<bool> done = false;
  bool failed = false;
  std::string message;
};

// May be called after the wait was given up, so it owns a reference to the result.
void on_mapped(WGPUMapAsyncStatus status, WGPUStringView message, void* result, void*) {
  const std::unique_ptr<std::shared_ptr<Mapped>> owned(
      static_cast<std::shared_ptr<Mapped>*>(result));
  Mapped& mapped = **owned;
  mapped.failed = status != WGPUMapAsyncStatus_Success;
  mapped.message = text_of(message);
  mapped.done = true;
}

core::Status map_and_read(Device& device, WGPUBuffer staging, std::span<std::byte> bytes) {
  const ProviderApi& api = device.api();
  const std::size_t size = (bytes.size() + 3) / 4 * 4;
  const auto mapped = std::make_shared<Mapped>();
  WGPUBufferMapCallbackInfo callback = WGPU_BUFFER_MAP_CALLBACK_INFO_INIT;
  callback.mode = WGPUCallbackMode_WaitAnyOnly;
  callback.callback = on_mapped;
  callback.userdata1 = new std::shared_ptr<Mapped>(mapped);
  WGPUFuture future{};
  core::Status status = device.scopes().run("mapping a buffer", [&] {
    future = api.wgpuBufferMapAsync(staging, WGPUMapMode_Read, 0, size, callback);
  });
  core::Status waited = device.wait_for(future, mapped->done);
  if (!status.ok()) return status;
  if (!waited.ok()) return waited;
  if (mapped->failed) {
    return {ErrorCode::device_error, "webgpu: mapping a buffer: " + mapped->message};
  }
  const void* from = api.wgpuBufferGetConstMappedRange(staging, 0, size);
  if (from == nullptr) return {ErrorCode::device_error, "webgpu: a mapped buffer has no memory"};
  std::memcpy(bytes.data(), from, bytes.size());
  api.wgpuBufferUnmap(staging);
  return {};
}

}  // namespace

core::Status upload(Device& device, WGPUBuffer buffer, std::uint64_t offset,
                    std::span<const std::byte> bytes) {
  if (bytes.empty()) return {};
  core::Status status = device.alive();
  if (status.ok()) {
    status = check_range(device, buffer, offset, bytes.size(), WGPUBufferUsage_CopyDst, "upload");
  }
  while (status.ok() && !bytes.empty()) {
    const std::uint64_t step = std::min<std::uint64_t>(bytes.size(), kStep);
    const auto part = bytes.first(step);
    status = bytes.size() < kMappedFrom ? upload_small(device, buffer, offset, part)
                                        : upload_mapped(device, buffer, offset, part);
    bytes = bytes.subspan(step);
    offset += step;
  }
  return status;
}

core::Status download(Device& device, WGPUBuffer buffer, std::uint64_t offset,
                      std::span<std::byte> bytes) {
  if (bytes.empty()) return wait(device);
  core::Status status = device.alive();
  if (status.ok()) {
    status = check_range(device, buffer, offset, bytes.size(), WGPUBufferUsage_CopySrc, "download");
  }
  Buffer staging;
  if (status.ok()) {
    status =
        device.pool().take(std::min<std::uint64_t>(bytes.size(), kStep), kReadBackUsage, staging);
  }
  while (status.ok() && !bytes.empty()) {
    const std::uint64_t step = std::min<std::uint64_t>(bytes.size(), kStep);
    status = copy(device, buffer, offset, staging.handle(), 0, (step + 3) / 4 * 4);
    if (status.ok()) status = map_and_read(device, staging.handle(), bytes.first(step));
    bytes = bytes.subspan(step);
    offset += step;
  }
  if (!status.ok()) staging.discard();
  return status;
}

}  // namespace attn::webgpu
