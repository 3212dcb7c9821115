// ApartFromCaptures: lets a thread take and free memory while a stream captures.
#pragma once

#include "cuda/host/driver.hpp"

namespace attn::cuda {

// Calls that take or free memory (those that make and destroy graphs too) break captures that other
// streams may be in the middle of, unless the thread says that its calls have nothing to do with
// them.
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
