// Dispatches: kernels with their memory and grid, recorded into an encoder or submitted. All that a
// provider would refuse is refused here, before it is asked.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "core/status.hpp"
#include "webgpu/host/pipelines.hpp"

namespace attn::webgpu {

// A range of a buffer, in bytes. The offset of a storage binding is a multiple of
// DeviceFacts::storage_alignment, that of parameters of uniform_alignment; sizes are multiples of 4
// (of 16 for parameters).
struct Bound {
  WGPUBuffer buffer = nullptr;
  std::uint64_t offset = 0;
  std::uint64_t size = 0;
};

struct BoundDispatch {
  const Pipeline* pipeline = nullptr;
  std::array<Bound, kMaxBindings> bound{};  // the first spec.num_bindings
  Bound parameters{};
  std::array<std::uint32_t, 3> grid{1, 1, 1};  // workgroups; one with a 0 is left out
};

// What the device would refuse of a dispatch: grid, alignment, size and usage of its bindings, one
// buffer read and written, ranges written twice. `index` is named in the message.
core::Status check(Device& device, const BoundDispatch& dispatch, int index);

// One compute pass into the caller's encoder. Dispatches run in order, each seeing what those
// before it wrote. Submits nothing.
core::Status record(Device& device, std::span<const BoundDispatch> dispatches,
                    WGPUCommandEncoder encoder);

// Records into an encoder of its own and submits that, without waiting. `seconds`, where not null
// and the device has timestamps: waits, and says how long the pass ran on the device (0 without).
core::Status submit(Device& device, std::span<const BoundDispatch> dispatches,
                    double* seconds = nullptr);

// Waits until everything that was submitted to the device's queue has run.
core::Status wait(Device& device);

}  // namespace attn::webgpu
