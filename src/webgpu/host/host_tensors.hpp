// Host tensors: a call's tensors in host memory, copied to the device and back. Tensors that share
// host memory share device memory too.
#pragma once

#include <cstddef>
#include <vector>

#include "core/signature.hpp"
#include "core/status.hpp"
#include "webgpu/host/buffers.hpp"

namespace attn::webgpu {

class HostTensors {
 public:
  explicit HostTensors(Device& device) : device_(device) {}

  // Adds a tensor. Call before upload().
  void add(const TensorView& tensor, bool written);
  core::Status upload();
  // The device copy of an added tensor. Tensors that are not given or have no elements have no
  // memory.
  [[nodiscard]] TensorView on_device(const TensorView& tensor) const;
  // Waits for the work and copies the elements of written tensors, and no other byte, to the host.
  // Returns `internal` if a kernel wrote between the elements.
  core::Status download();

 private:
  struct Region {
    std::byte* begin = nullptr;
    std::byte* end = nullptr;
    bool written = false;
    Buffer buffer{};
  };
  [[nodiscard]] const Region* find(const void* address) const;

  Device& device_;
  std::vector<Region> regions_;
  std::vector<TensorView> written_;
};

}  // namespace attn::webgpu
