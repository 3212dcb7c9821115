// Hides what drivers and their loaders write to stderr (Mesa, the Vulkan loader, wgpu-native).
#pragma once

#include "platform/platform.hpp"

namespace attn::cli {

// While it lives, what the process writes to stderr is dropped. Errors travel as exceptions and
// are printed after it.
class QuietStderr {
 public:
  QuietStderr() : kept_(platform::silence_stderr()) {}
  ~QuietStderr() { platform::restore_stderr(kept_); }
  QuietStderr(const QuietStderr&) = delete;
  QuietStderr& operator=(const QuietStderr&) = delete;

 private:
  const int kept_;
};

}  // namespace attn::cli
