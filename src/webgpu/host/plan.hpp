// The WebGPU plan: pure functions of pass, problem and device facts, tested without a device.
#pragma once

#include <attn/problem.hpp>

#include "core/backend.hpp"
#include "core/plan.hpp"
#include "webgpu/host/device.hpp"
#include "webgpu/host/work.hpp"

namespace attn::webgpu {

// All for problems that validate_problem() accepted; the others for those that check_support()
// takes too.
core::Capability check_support(Pass pass, const Problem& problem, const DeviceFacts& facts);
core::Plan make_plan(Pass pass, const Problem& problem, const DeviceFacts& facts);
// The steps of a call with contiguous tensors, each in a buffer of its own.
core::Status work_of_problem(Pass pass, const Problem& problem, const DeviceFacts& facts,
                             Work& work);

}  // namespace attn::webgpu
