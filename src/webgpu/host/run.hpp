// Run: a call's steps with memory and pipelines: dispatches, in chunks of one submission each.
#pragma once

#include <span>
#include <vector>

#include "core/status.hpp"
#include "webgpu/host/dispatch.hpp"
#include "webgpu/host/step.hpp"

namespace attn::webgpu {

// The scratch memory of a call, as large as its Work says; parameters() bytes of parameters.
struct ScratchBuffers {
  Bound info, prepared, staged, parameters;
};

// Bytes of each: what the work takes, room for outputs that are not asked for, one slice of
// parameters for each step and constants behind them.
Needs needs_of(const Work& work);

// Where an operand of one of the work's steps is.
Bound placed(const Work& work, const Step& step, const Operand& operand,
             const ScratchBuffers& scratch);
Bound parameters_at(std::size_t step, const ScratchBuffers& scratch);

// Compiles what is not compiled yet and puts every step's operands in their places.
core::Status resolve(Device& device, const Work& work, const ScratchBuffers& scratch,
                     std::vector<Dispatch>& dispatches);
// What they hold.
std::vector<std::byte> parameters_of(const Work& work);

// How many steps each submission takes, in order.
std::vector<std::size_t> chunks_of(const Work& work, const DeviceFacts& facts);

// Queues the work in scratch memory of the device's pool, without waiting.
core::Status run(Device& device, const Work& work);

}  // namespace attn::webgpu
