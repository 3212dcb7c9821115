// Buffers: owned memory of a device; a pool that keeps it between calls; copies to and from the
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

// Usages of libattn's own buffers: storage with copies both ways, parameters, and read-back.
inline constexpr WGPUBufferUsage kStorageUsage =
    WGPUBufferUsage_Storage | WGPUBufferUsage_CopySrc | WGPUBufferUsage_CopyDst;
inline constexpr WGPUBufferUsage kUniformUsage = WGPUBufferUsage_Uniform | WGPUBufferUsage_CopyDst;
inline constexpr WGPUBufferUsage kReadBackUsage = WGPUBufferUsage_MapRead | WGPUBufferUsage_CopyDst;

// Owns a buffer. Its destructor returns it to the device's pool or releases it. The device must
// outlive it.
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

  // `bytes` is rounded up to a multiple of 16 (at least 16). Returns out_of_memory if it exceeds
  // the device's limit or memory.
  static core::Status create(Device& device, std::uint64_t bytes, WGPUBufferUsage usage,
                             Buffer& buffer);

  [[nodiscard]] WGPUBuffer handle() const { return handle_; }
  [[nodiscard]] std::uint64_t size() const { return size_; }  // allocated, not requested
  [[nodiscard]] WGPUBufferUsage usage() const { return usage_; }
  explicit operator bool() const { return handle_ != nullptr; }
  void reset();    // returns it to the pool, or releases it
  void discard();  // releases it; for buffers in an unknown state

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

// Keeps released buffers for reuse. A buffer may be reused while a submission still uses it: the
// queue runs submissions in order.
class Pool {
 public:
  explicit Pool(Device& device, std::uint64_t max_bytes = std::uint64_t{256} << 20)
      : device_(device), max_bytes_(max_bytes) {}
  ~Pool() { clear(); }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // Returns a buffer of at least `bytes` and at most twice as many. Its content is undefined.
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

// Copies bytes of the host into a buffer with CopyDst, before any later submission. `offset` must
// be a multiple of 4. If the size is not a multiple of 4, up to 3 bytes after it are zeroed.
core::Status upload(Device& device, WGPUBuffer buffer, std::uint64_t offset,
                    std::span<const std::byte> bytes);
// Waits for all submissions and copies bytes of a buffer with CopySrc to the host. `offset` must be
// a multiple of 4.
core::Status download(Device& device, WGPUBuffer buffer, std::uint64_t offset,
                      std::span<std::byte> bytes);

}  // namespace attn::webgpu
