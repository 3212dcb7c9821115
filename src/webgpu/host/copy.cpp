// Copies; see copy.hpp.
#include "webgpu/host/copy.hpp"

namespace attn::webgpu {

core::Status add_copy(Work&, const DeviceFacts&, const View&, const View&, const CopyOptions&) {
  return core::Status::unsupported("webgpu: views that are not aligned");
}

}  // namespace attn::webgpu
