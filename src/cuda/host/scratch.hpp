// Scratch: memory for one call whose caller gave none, ordered on the call's stream: taken from the
// device's memory pool and given back behind the call's kernels, also in a captured graph.
#pragma once

#include <cstdint>

#include "cuda/host/device.hpp"

namespace attn::cuda {

class Scratch {
 public:
  // Nothing is taken for 0 bytes. The context is current for as long as this lives.
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
