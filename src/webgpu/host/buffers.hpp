// Buffers: memory of a device, owned; a pool that keeps it between calls; copies to and from the
// host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <utility>

#include "core/status.hpp"
#include "webgpu/host/device.hpp"

namespace attn::webgpu {

// What libattn's own buffers are for: storage and copies both ways, or parameters.
inline constexpr WGPUBufferUsage kStorageUsage =
    WGPUBufferUsage_Storage | WGPUBufferUsage_CopySrc | WGPUBufferUsage_CopyDst;
inline constexpr WGPUBufferUsage kUniformUsage = WGPUBufferUsage_Uniform | WGPUBufferUsage_CopyDst;
inline constexpr WGPUBufferUsage kReadBackUsage = WGPUBufferUsage_MapRead | WGPUBufferUsage_CopyDst;

// Owns a buffer; given back to the device's pool, or destroyed, with it. The device outlives it.
class Buffer {
 public:
  Buffer() = default;
  ~Buffer() { reset(); }
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    Buffer moved(std::move(other));
    swap(moved);
    return *this;
  }

  // `bytes` is rounded up to a multiple of 16 (at least 16). Too large for the device or for its
  // memory: out_of_memory.
  static core::Status create(Device& device, std::uint64_t bytes, WGPUBufferUsage usage,
                             Buffer& buffer);

  [[nodiscard]] WGPUBuffer handle() const { return handle_; }
  [[nodiscard]] std::uint64_t size() const { return size_; }  // of the memory, not what was asked
  [[nodiscard]] WGPUBufferUsage usage() const { return usage_; }
  explicit operator bool() const { return handle_ != nullptr; }
  void reset();    // gives it back or lets go of it
  void discard();  // lets go of it, for one in an unknown state

 private:
  friend class Pool;
  void swap(Buffer& other) noexcept;
  void destroy();

  Device* device_ = nullptr;
  WGPUBuffer handle_ = nullptr;
  std::uint64_t size_ = 0;
  WGPUBufferUsage usage_ = 0;
  bool pooled_ = false;
};

// Keeps buffers that calls gave back. One that a submission still uses may be handed out again: the
// queue runs in order, so what the next user submits comes after.
class Pool {
 public:
  explicit Pool(Device& device, std::uint64_t max_bytes = std::uint64_t{256} << 20)
      : device_(device), max_bytes_(max_bytes) {}
  ~Pool() { clear(); }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // A buffer of at least that size (at most twice), with what was in it before.
  core::Status take(std::uint64_t bytes, WGPUBufferUsage usage, Buffer& buffer);
  void clear();
  [[nodiscard]] std::uint64_t kept_bytes() const;

 private:
  friend class Buffer;
  void give_back(Buffer& buffer);

  Device& device_;
  const std::uint64_t max_bytes_;
  mutable std::mutex mutex_;
  std::uint64_t kept_bytes_ = 0;
  std::multimap<std::pair<WGPUBufferUsage, std::uint64_t>, WGPUBuffer> kept_;  // by usage and size
};

// Copies bytes of the host into a buffer with CopyDst, before whatever is submitted later. `offset`
// is a multiple of 4; where the size is not, up to 3 bytes behind are zeroed.
core::Status upload(Device& device, WGPUBuffer buffer, std::uint64_t offset,
                    std::span<const std::byte> bytes);
// Waits for what was submitted and copies bytes of a buffer with CopySrc to the host. `offset` is a
// multiple of 4.
core::Status download(Device& device, WGPUBuffer buffer, std::uint64_t offset,
                      std::span<std::byte> bytes);

}  // namespace attn::webgpu
