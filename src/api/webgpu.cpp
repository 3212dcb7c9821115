// Entry points of <attn/webgpu.hpp>.
#include <attn/webgpu.hpp>

#include "api/state.hpp"
#include "webgpu/embedding.hpp"

namespace attn::webgpu {

std::shared_ptr<Device> adopt(const Handles& handles) {
  std::shared_ptr<Device> device;
  api::check(wrap(handles, device));
  return device;
}

std::string describe(const Device& device) {
  return text_of(device);
}

}  // namespace attn::webgpu
