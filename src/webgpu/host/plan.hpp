// The WebGPU plan: pure functions of pass, problem and device facts, tested without a device.
#pragma once

#include <attn/problem.hpp>
#include <string>
#include <vector>

#include "core/backend.hpp"
#include "core/plan.hpp"
#include "webgpu/host/device.hpp"
#include "webgpu/host/work.hpp"

namespace attn::webgpu {

// The kernels of a call with contiguous tensors, each in a buffer of its own: what is prepared and
// printed. A call's dispatches also depend on where its tensors lie (buffers that inputs and
// outputs share, strides), so launch makes them.
struct WebGpuPlan final : core::Plan {
  using core::Plan::Plan;
  [[nodiscard]] PlanSummary summary() const override;

  const char* kernel = "";  // source of the dispatches that the summary describes
  std::int64_t tile_q = 0;
  std::int64_t tile_kv = 0;
  std::int64_t tasks = 0;             // workgroups of that kernel
  std::vector<KernelSpec> kernels{};  // of each dispatch, in order
};

// The plan, or why there is none. Both for problems that validate_problem() accepted.
core::Result<WebGpuPlan> make_plan(Pass pass, const Problem& problem, const DeviceFacts& facts);
// What the device or the kernels lack for the problem; "" where nothing.
std::string refusal(const Problem& problem, const DeviceFacts& facts);
// The steps of a call with contiguous tensors, each in a buffer of its own.
core::Status work_of_problem(Pass pass, const Problem& problem, const DeviceFacts& facts,
                             Work& work);

}  // namespace attn::webgpu
