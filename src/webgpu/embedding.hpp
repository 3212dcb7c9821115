// The implementation of <attn/webgpu.hpp>: an engine's device and calls on it, with errors as
// values.
#pragma once

#include <attn/webgpu.hpp>
#include <memory>
#include <string>

#include "core/status.hpp"

namespace attn::webgpu {

core::Status wrap(const Handles& handles, std::shared_ptr<Device>& device);
std::string text_of(const Device& device);

// The dispatches of a call with compiled kernels; see Recording.
class Recorder {
 public:
  virtual ~Recorder() = default;
  [[nodiscard]] virtual Needs needs() const = 0;
  virtual core::Status use(const Scratch& scratch) = 0;
  [[nodiscard]] virtual int num_chunks() const = 0;
  virtual core::Status record(int chunk, void* encoder) const = 0;
  virtual core::Status submit() const = 0;
};

// Problems and arguments must have been validated. An `unsupported` status has the reason.
core::Status make_recorder(std::shared_ptr<Device> device, Pass pass, const Problem& problem,
                           const Arguments& arguments, std::unique_ptr<Recorder>& recorder);
core::Status make_recorder(std::shared_ptr<Device> device, const MergeArguments& arguments,
                           std::unique_ptr<Recorder>& recorder);
core::Status make_recorder(std::shared_ptr<Device> device, const MergeBackwardArguments& arguments,
                           std::unique_ptr<Recorder>& recorder);
core::Status make_recorder(std::shared_ptr<Device> device, const RopeArguments& arguments,
                           std::unique_ptr<Recorder>& recorder);

}  // namespace attn::webgpu
