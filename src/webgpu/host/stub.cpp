// Replaces the WebGPU backend if it is not built.
#include "core/not_built.hpp"
#include "webgpu/backend.hpp"

namespace attn::webgpu {

const core::Backend& backend() {
  static const core::NotBuilt instance("webgpu", Device::webgpu,
                                       "this build has no WebGPU backend");
  return instance;
}

}  // namespace attn::webgpu
