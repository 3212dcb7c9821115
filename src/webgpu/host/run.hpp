// Assigns memory and pipelines to the dispatches of a call and submits them.
#pragma once

#include <span>
#include <vector>

#include "core/status.hpp"
#include "webgpu/host/dispatch.hpp"
#include "webgpu/host/work.hpp"

namespace attn::webgpu {

// The scratch memory of a call, with at least the sizes of needs_of().
struct ScratchBuffers {
  Bound info, prepared, staged, parameters;
};

// Bytes of each scratch buffer: what the work reserves, space for absent outputs, and one slice of
// parameters per dispatch followed by the constants.
Needs needs_of(const Work& work);

// The memory of an operand of one of the work's dispatches.
Bound placed(const Work& work, const Dispatch& dispatch, const Operand& operand,
             const ScratchBuffers& scratch);
Bound parameters_at(std::size_t dispatch, const ScratchBuffers& scratch);

// Compiles missing pipelines and places the operands of every dispatch.
core::Status resolve(Device& device, const Work& work, const ScratchBuffers& scratch,
                     std::vector<BoundDispatch>& bound);
// The content of the parameter buffer.
std::vector<std::byte> parameters_of(const Work& work);

// Number of dispatches in each submission, in order.
std::vector<std::size_t> submission_sizes(const Work& work, const DeviceFacts& facts);

// Submits the work with scratch memory from the device's pool. Does not wait.
core::Status run(Device& device, const Work& work);

}  // namespace attn::webgpu
