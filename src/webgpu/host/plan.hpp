// The WebGPU plan: pure functions of pass, problem and device facts, tested without a device.
#pragma once

#include <attn/problem.hpp>
#include <string>
#include <vector>

#include "core/backend.hpp"
#include "core/plan.hpp"
#include "webgpu/host/device.hpp"
#include "webgpu/host/work.hpp"
#include "webgpu/passes/attention_plan.hpp"

namespace attn::webgpu {

// `attention` is what launch runs. The dispatches of a call also depend on its tensors: launch adds
// copies of tensors that kernels cannot read or write in place (strides, buffers that inputs and
// outputs share), and divides the work into chunks that fit the device's bindings. The summary
// therefore describes calls with contiguous tensors, each in a buffer of its own.
struct WebGpuPlan final : core::Plan {
  WebGpuPlan(Pass of_pass, const Problem& of_problem, const DeviceFacts& facts)
      : Plan(of_pass, of_problem), attention(plan_attention(of_pass, of_problem, facts)) {}
  [[nodiscard]] PlanSummary summary() const override;

  AttentionPlan attention;
  // Used by the summary.
  std::int64_t tasks = 0;             // workgroups of the main kernel
  std::vector<KernelSpec> kernels{};  // of each dispatch, in order
};

// The plan, or the reason why there is none. The problem must have passed validate_problem().
core::Result<WebGpuPlan> make_plan(Pass pass, const Problem& problem, const DeviceFacts& facts);
// What the device or the kernels lack for the problem; empty if nothing.
std::string refusal(const Problem& problem, const DeviceFacts& facts);
// The dispatches of a call with contiguous tensors, each in a buffer of its own.
core::Status work_of_problem(const WebGpuPlan& plan, Work& work);

}  // namespace attn::webgpu
