// Scopes: a device's error scopes as core::Status. Error scopes belong to the device, not to the
// thread. So only one thread at a time opens them, and each call that may fail is made inside of
// one.
#pragma once

#include <mutex>
#include <string>
#include <string_view>

#include "core/status.hpp"
#include "webgpu/host/provider.hpp"

namespace attn::webgpu {

class Device;

class Scopes {
 public:
  explicit Scopes(const Device& device) : device_(device) {}
  Scopes(const Scopes&) = delete;
  Scopes& operator=(const Scopes&) = delete;

  // Runs body() inside of scopes for validation, memory and internal errors. Returns the first
  // error, with `tried` in its message ("building forward.wgsl"). Errors that the caller's engine
  // causes on the same device meanwhile are caught too. Must not be nested.
  template <class Body>
  core::Status run(std::string_view tried, Body&& body) {
    const std::lock_guard<std::mutex> lock(mutex_);
    Open open(*this, tried);
    body();
    return open.close();
  }

 private:
  class Open {
   public:
    Open(Scopes& scopes, std::string_view tried);
    ~Open();
    Open(const Open&) = delete;
    Open& operator=(const Open&) = delete;
    core::Status close();

   private:
    Scopes& scopes_;
    std::string_view tried_;
    int depth_ = 0;
  };

  const Device& device_;
  std::mutex mutex_;
};

// The position ("forward.wgsl:12:5: ") in a compiler's message about the source `label`. Empty if
// the message names no line.
std::string shader_line(std::string_view label, std::string_view message);

}  // namespace attn::webgpu
