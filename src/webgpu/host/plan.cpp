// Implements plan.hpp.
#include "webgpu/host/plan.hpp"

#include <algorithm>
#include <array>
#include <string>

#include "core/signature.hpp"
#include "core/tensor.hpp"
#include "core/tensor_rules.hpp"
#include "webgpu/passes/attention.hpp"

namespace attn::webgpu {
namespace {

// Limit on rows, so that 32-bit arithmetic on positions does not overflow.
constexpr std::int64_t kMaxLength = std::int64_t{1} << 28;
constexpr std::uint64_t kNeededWorkgroupBytes = 16384;

bool is_stored(DType dtype) {
  return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16;
}

// A contiguous tensor of this shape in a buffer of its own. `number` selects the (dummy) buffer.
TensorView contiguous(const core::Shape& shape, std::size_t number) {
  TensorView view;
  static std::array<char, 64> names;
  view.data = &names[number % names.size()];
  view.dtype = shape.dtype;
  view.device = attn::Device::webgpu;
  view.rank = shape.rank;
  for (std::size_t d = 0; d < static_cast<std::size_t>(shape.rank); ++d) {
    // A cache may have any number of pages. Use at least 1, because a tensor without elements would
    // be left out of the plan.
    const bool any = shape.dims[d].fit == core::Fit::any;
    view.shape[d] = any ? std::max<std::int64_t>(shape.dims[d].size, 1) : shape.dims[d].size;
  }
  core::set_contiguous_strides(view);
  return view;
}

}  // namespace

std::string refusal(const Problem& p, const DeviceFacts& facts) {
  for (const DType dtype : {p.dtype, p.kv_type(), p.out_type(), p.grad_type()}) {
    if (!is_stored(dtype)) {
      return std::string("no kernel for ") + to_string(dtype) +
             " on WebGPU; accepted f32, f16 and bf16";
    }
  }
  if (p.len_q > kMaxLength || p.len_kv > kMaxLength || p.total_q > kMaxLength ||
      p.total_kv > kMaxLength) {
    return "sequences of more than 2^28 rows";
  }
  if (facts.workgroup_bytes < kNeededWorkgroupBytes) {
    return "the device has " + std::to_string(facts.workgroup_bytes) +
           " bytes of workgroup memory; needed are 16384";
  }
  return {};
}

core::Status work_of_problem(const WebGpuPlan& plan, Work& work) {
  Arguments arguments;
  std::size_t number = 0;
  for (const core::Slot& slot : core::slots_of(plan.pass, plan.problem)) {
    if (slot.use == core::Use::needed) arguments.*slot.view = contiguous(slot.shape, number++);
  }
  return make_work(plan, arguments, work);
}

core::Result<WebGpuPlan> make_plan(Pass pass, const Problem& problem, const DeviceFacts& facts) {
  using Planned = core::Result<WebGpuPlan>;
  if (std::string why = refusal(problem, facts); !why.empty()) {
    return Planned::none(std::move(why));
  }
  WebGpuPlan plan(pass, problem, facts);
  Work work;
  core::Status status = work_of_problem(plan, work);
  if (!status.ok()) return Planned::none(std::move(status.message));
  plan.workspace_bytes = static_cast<std::int64_t>(work.scratch_bytes());
  for (const Dispatch& dispatch : work.dispatches) {
    plan.kernels.push_back(dispatch.spec);
    if (dispatch.spec.source != plan.attention.main().spec.source) continue;
    plan.tasks += std::int64_t{dispatch.grid[0]} * dispatch.grid[1] * dispatch.grid[2];
  }
  return plan;
}

PlanSummary WebGpuPlan::summary() const {
  const PlannedKernel& main = attention.main();
  PlanSummary to;
  to.kernel = main.spec.source;
  to.tile_q = main.tiles.q;
  to.tile_kv = main.tile_kv;
  to.workspace_bytes = workspace_bytes;
  to.tasks = tasks;
  for (const KernelSpec& spec : kernels) to.kernels.push_back(name_of(spec));
  if (tasks == 0) return to;
  for (int n = 0; n < main.spec.num_constants; ++n) {
    const Constant& constant = main.spec.constants[static_cast<std::size_t>(n)];
    core::append_config(to.config, constant.name, static_cast<std::int64_t>(constant.value));
  }
  return to;
}

}  // namespace attn::webgpu
