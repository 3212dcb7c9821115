// Replaces embedding.cpp if the backend is not built. There are no devices.
#include "webgpu/embedding.hpp"

namespace attn::webgpu {
namespace {

core::Status not_built() {
  return core::Status::unsupported("webgpu: this build has no WebGPU backend");
}

}  // namespace

core::Status wrap(const Handles&, std::shared_ptr<Device>&) {
  return not_built();
}

std::string text_of(const Device&) {
  return {};
}

core::Status make_recorder(std::shared_ptr<Device>, Pass, const Problem&, const Arguments&,
                           std::unique_ptr<Recorder>&) {
  return not_built();
}
core::Status make_recorder(std::shared_ptr<Device>, const MergeArguments&,
                           std::unique_ptr<Recorder>&) {
  return not_built();
}
core::Status make_recorder(std::shared_ptr<Device>, const MergeBackwardArguments&,
                           std::unique_ptr<Recorder>&) {
  return not_built();
}
core::Status make_recorder(std::shared_ptr<Device>, const RopeArguments&,
                           std::unique_ptr<Recorder>&) {
  return not_built();
}

}  // namespace attn::webgpu
