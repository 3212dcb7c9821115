// Hides what drivers and their loaders write to stderr (Mesa, the Vulkan loader, wgpu-native).
#pragma once

#include <fcntl.h>
#include <unistd.h>

namespace attn::cli {

// While it lives, what the process writes to stderr is dropped. Errors travel as exceptions and
// are printed after it.
class QuietStderr {
 public:
  QuietStderr() : stderr_(::dup(STDERR_FILENO)) {
    const int null = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (stderr_ >= 0 && null >= 0) ::dup2(null, STDERR_FILENO);
    if (null >= 0) ::close(null);
  }
  ~QuietStderr() {
    if (stderr_ < 0) return;
    ::dup2(stderr_, STDERR_FILENO);
    ::close(stderr_);
  }
  QuietStderr(const QuietStderr&) = delete;
  QuietStderr& operator=(const QuietStderr&) = delete;

 private:
  const int stderr_;
};

}  // namespace attn::cli
