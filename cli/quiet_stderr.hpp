// Hides the output of drivers and their loaders on stderr (Mesa, the Vulkan loader, wgpu-native).
#pragma once

#include "platform/platform.hpp"

namespace attn::cli {

// Drops everything that the process writes to stderr during its lifetime. Errors are exceptions and
// are printed afterwards.
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
