// What the tests of the WebGPU host side share: a device, a few shaders, and a provider whose
// functions can be replaced.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "webgpu/host/buffers.hpp"
#include "webgpu/host/device.hpp"
#include "webgpu/host/dispatch.hpp"
#include "webgpu/host/pipelines.hpp"

namespace attn::webgpu::test {

// A device of its own for each test; skips the test where there is none.
class OnDevice : public testing::Test {
 protected:
  void SetUp() override;
  Device& device() { return *device_; }
  std::shared_ptr<Device> device_;
};

// add.wgsl: c[i] = a[i] + b[i] * FACTOR + parameters.offset for i < parameters.count; broken.wgsl
// has an error in line 4; others see support.cpp.
std::span<const Source> sources();
KernelSpec add_spec(double factor = 1);

struct AddParameters {
  std::uint32_t count = 0;
  std::uint32_t offset = 0;
  std::uint32_t padding[2] = {};
};

// Three buffers of `count` words, a[i] = i and b[i] = 2 i, and the dispatch that adds them.
struct Add {
  Buffer a, b, c, parameters;
  std::uint32_t count = 0;
  core::Status create(Device& device, std::uint32_t count, std::uint32_t offset = 0);
  [[nodiscard]] BoundDispatch dispatch(const Pipeline& pipeline) const;
};

// How often c is not what `factor` and `offset` make of a and b; downloads it.
std::size_t wrong(Device& device, const Add& add, std::uint32_t factor, std::uint32_t offset = 0);

// Another device of the same instance, as of an engine that set no callback for errors: one that no
// scope catches aborts the process.
core::Status open_beside(Device& device, std::shared_ptr<Device>& other);
// The engine's lookup of functions: those of the process's provider.
void* find_function(const char* name);

// The process's provider with functions replaced by `change`; kept until the process ends.
const Provider* provider_with(void (*change)(ProviderApi& api));

testing::AssertionResult is_ok(const core::Status& status);
// Not ok, with that code and this in the message.
testing::AssertionResult fails(const core::Status& status, ErrorCode code, const std::string& text);

}  // namespace attn::webgpu::test
