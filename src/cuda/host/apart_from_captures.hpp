// ApartFromCaptures: lets a thread allocate and free memory while some stream captures.
#pragma once

#include "cuda/host/driver.hpp"

namespace attn::cuda {

// Driver calls that allocate or free memory, or create or destroy graphs, invalidate a capture that
// is in progress on another stream. The relaxed capture mode of the calling thread prevents that.
class ApartFromCaptures {
 public:
  explicit ApartFromCaptures(const DriverApi& api) : api_(api) { exchange(); }
  ~ApartFromCaptures() { exchange(); }
  ApartFromCaptures(const ApartFromCaptures&) = delete;
  ApartFromCaptures& operator=(const ApartFromCaptures&) = delete;

 private:
  void exchange() { api_.cuThreadExchangeStreamCaptureMode(&mode_); }

  const DriverApi& api_;
  int mode_ = abi::kCaptureModeRelaxed;
};

}  // namespace attn::cuda
