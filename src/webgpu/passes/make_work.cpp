// The dispatches of a call, after the checks that need its tensors.
#include <cstdlib>
#include <string>

#include "core/refusal.hpp"
#include "core/signature.hpp"
#include "core/visibility.hpp"
#include "webgpu/passes/attention.hpp"

namespace attn::webgpu {
namespace {

constexpr std::int64_t kFarthestDiagonal = std::int64_t{1} << 30;

core::Status check_call(const WebGpuPlan& plan, const Arguments& a) {
  const Problem& p = plan.problem;
  for (const core::Slot& slot : core::slots_of(plan.pass, p)) {
    const TensorView& view = a.*slot.view;
    if (slot.use == core::Use::ignored || !view.given()) continue;
    if (view.offset_bytes % size_of(view.dtype) != 0) {
      return core::refuse(std::string("webgpu: ") + slot.name, "offset_bytes",
                          std::to_string(view.offset_bytes),
                          "a multiple of " + std::to_string(size_of(view.dtype)));
    }
  }
  if (p.dropout && (a.seed.device != nullptr || a.offset.device != nullptr)) {
    return core::Status::unsupported(
        "webgpu: seed and offset in device memory: kernels take them with their parameters; "
        "accepted as numbers");
  }
  if (p.alibi && p.diagonal == Diagonal::explicit_value &&
      std::abs(core::explicit_diagonal(a)) > kFarthestDiagonal) {
    return core::Status::unsupported("webgpu: ALiBi with a diagonal beyond 2^30");
  }
  return {};
}

}  // namespace

core::Status make_work(const WebGpuPlan& plan, const Arguments& arguments, Work& work) {
  core::Status status = check_call(plan, arguments);
  if (!status.ok()) return status;
  PreparedCall prepared = prepared_call(plan, arguments);
  add_prepare(prepared, work);
  status = add_inputs(prepared, work);
  if (!status.ok()) return status;
  switch (plan.attention.path) {
    case AttentionPlan::Path::forward: return add_forward(prepared, work);
    case AttentionPlan::Path::decode: return add_decode(prepared, work);
    case AttentionPlan::Path::backward: break;
  }
  return add_backward(prepared, work);
}

}  // namespace attn::webgpu
