// Dispatches: kernels with bound memory and a grid, recorded into an encoder or submitted.
// Everything that a provider would refuse is checked first.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "core/status.hpp"
#include "webgpu/host/pipelines.hpp"

namespace attn::webgpu {

// A range of a buffer, in bytes. Offsets are multiples of DeviceFacts::storage_alignment for
// storage, of uniform_alignment for parameters. Sizes are multiples of 4 (16 for parameters).
struct Bound {
  WGPUBuffer buffer = nullptr;
  std::uint64_t offset = 0;
  std::uint64_t size = 0;
};

struct BoundDispatch {
  const Pipeline* pipeline = nullptr;
  std::array<Bound, kMaxBindings> bound{};  // the first spec.num_bindings
  Bound parameters{};
  std::array<std::uint32_t, 3> grid{1, 1, 1};  // workgroups; skipped if any is 0
};

// Checks what the device would refuse: grid; alignment, size and usage of bindings; buffers that
// are both read and written; ranges that are written twice. `index` is for the message.
core::Status check(Device& device, const BoundDispatch& dispatch, int index);

// Records one compute pass into the caller's encoder. Dispatches run in order, and each sees what
// the ones before it wrote. Submits nothing.
core::Status record(Device& device, std::span<const BoundDispatch> dispatches,
                    WGPUCommandEncoder encoder);

// Records into a new encoder and submits it without waiting. If `seconds` is not null and the
// device has timestamps, waits and sets it to the pass's time on the device (0 without timestamps).
core::Status submit(Device& device, std::span<const BoundDispatch> dispatches,
                    double* seconds = nullptr);

// Waits until all submissions to the device's queue have run.
core::Status wait(Device& device);

}  // namespace attn::webgpu
