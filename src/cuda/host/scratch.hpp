// Scratch: memory for one call without a workspace of the caller. It is allocated from the device's
// memory pool and freed after the call's kernels, in stream order, also in a captured graph.
#pragma once

#include <cstdint>

#include "cuda/host/device.hpp"

namespace attn::cuda {

class Scratch {
 public:
  // Allocates nothing for 0 bytes. The context must be current during the object's lifetime.
  Scratch(const CurrentContext& context, std::int64_t bytes, abi::Stream stream);
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  [[nodiscard]] const core::Status& status() const { return status_; }
  [[nodiscard]] void* data() const { return reinterpret_cast<void*>(pointer_); }  // NOLINT

 private:
  const Driver& driver_;
  abi::Stream stream_;
  abi::DevicePointer pointer_ = 0;
  core::Status status_;
};

}  // namespace attn::cuda
