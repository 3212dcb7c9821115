// Stands in for embedding.cpp where the backend is not built: there are no devices.
#include "webgpu/embedding.hpp"

namespace attn::webgpu {

core::Status wrap(const Handles&, std::shared_ptr<Device>&) {
  return core::Status::unsupported("webgpu: this build has no WebGPU backend");
}

std::string text_of(const Device&) {
  return {};
}

}  // namespace attn::webgpu
