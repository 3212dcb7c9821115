// Host tensors: a call's tensors in host memory, copied to the device and back. Tensors that share
// memory there share it on the device too.
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

  // Before upload().
  void add(const TensorView& tensor, bool written);
  core::Status upload();
  // The same tensor on the device; of one that was added. Not given or without elements: as it is.
  [[nodiscard]] TensorView on_device(const TensorView& tensor) const;
  // Waits for the work and writes the elements of written tensors, and no other byte, to the host.
  // internal: a kernel wrote between them.
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
