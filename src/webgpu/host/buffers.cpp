// Buffers and their pool; see buffers.hpp.
#include "webgpu/host/buffers.hpp"

#include <algorithm>
#include <string>

namespace attn::webgpu {
namespace {

std::uint64_t rounded(std::uint64_t bytes) {
  return std::max<std::uint64_t>(16, (bytes + 15) / 16 * 16);
}

}  // namespace

core::Status Buffer::create(Device& device, std::uint64_t bytes, WGPUBufferUsage usage,
                            Buffer& buffer) {
  buffer.reset();
  // Checked here because some providers abort the process instead of reporting an error.
  const std::uint64_t most = device.facts().max_buffer_bytes;
  if (bytes > most) {
    return {ErrorCode::out_of_memory, "webgpu: a buffer of " + std::to_string(bytes) + " bytes; " +
                                          device.facts().name + " takes " + std::to_string(most)};
  }
  WGPUBufferDescriptor descriptor = WGPU_BUFFER_DESCRIPTOR_INIT;
  descriptor.usage = usage;
  descriptor.size = std::min(rounded(bytes), most / 4 * 4);
  WGPUBuffer handle = nullptr;
  core::Status status = device.scopes().run("allocating " + std::to_string(bytes) + " bytes", [&] {
    handle = device.api().wgpuDeviceCreateBuffer(device.handle(), &descriptor);
  });
  if (!status.ok()) {
    if (handle != nullptr) device.api().wgpuBufferRelease(handle);
    return status;
  }
  buffer.device_ = &device;
  buffer.handle_ = handle;
  buffer.size_ = descriptor.size;
  buffer.usage_ = usage;
  buffer.pooled_ = false;
  return {};
}

void Buffer::swap(Buffer& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(handle_, other.handle_);
  std::swap(size_, other.size_);
  std::swap(usage_, other.usage_);
  std::swap(pooled_, other.pooled_);
}

void Buffer::destroy() {
  // Not wgpuBufferDestroy: a submission may still use the memory.
  device_->api().wgpuBufferRelease(handle_);
  handle_ = nullptr;
}

void Buffer::discard() {
  pooled_ = false;
  reset();
}

void Buffer::reset() {
  if (handle_ == nullptr) return;
  if (pooled_) {
    device_->pool().give_back(*this);
  } else {
    destroy();
  }
  handle_ = nullptr;
  size_ = 0;
}

core::Status Pool::take(std::uint64_t bytes, WGPUBufferUsage usage, Buffer& buffer) {
  buffer.reset();
  const std::uint64_t wanted = rounded(bytes);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = kept_.lower_bound({usage, wanted});
    if (found != kept_.end() && found->first.first == usage && found->first.second <= 2 * wanted) {
      buffer.device_ = &device_;
      buffer.handle_ = found->second;
      buffer.size_ = found->first.second;
      buffer.usage_ = usage;
      buffer.pooled_ = true;
      kept_bytes_ -= buffer.size_;
      kept_.erase(found);
      return {};
    }
  }
  core::Status status = Buffer::create(device_, bytes, usage, buffer);
  if (status.code == ErrorCode::out_of_memory && kept_bytes() > 0) {
    clear();
    status = Buffer::create(device_, bytes, usage, buffer);
  }
  buffer.pooled_ = status.ok();
  return status;
}

void Pool::give_back(Buffer& buffer) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (kept_bytes_ + buffer.size_ > max_bytes_) {
    buffer.destroy();
    return;
  }
  kept_bytes_ += buffer.size_;
  kept_.emplace(std::pair(buffer.usage_, buffer.size_), buffer.handle_);
}

void Pool::clear() {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [key, handle] : kept_) device_.api().wgpuBufferRelease(handle);
  kept_.clear();
  kept_bytes_ = 0;
}

std::uint64_t Pool::kept_bytes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return kept_bytes_;
}

}  // namespace attn::webgpu
