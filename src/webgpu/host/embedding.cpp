// See embedding.hpp.
#include "webgpu/embedding.hpp"

#include "webgpu/host/device.hpp"

namespace attn::webgpu {

core::Status wrap(const Handles& handles, std::shared_ptr<Device>& device) {
  return Device::wrap(handles, device);
}

std::string text_of(const Device& device) {
  return to_string(device.facts());
}

}  // namespace attn::webgpu
