// The choice of a family; see make_plan.hpp.
#include "cuda/families/make_plan.hpp"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "cuda/families/sm80/plan.hpp"

namespace attn::cuda {
namespace {

constexpr std::int64_t kMaxBlocks = std::numeric_limits<std::int32_t>::max();

// Why the kernels can't be launched; "" if they can.
std::string grid_refusal(const CudaPlan& plan) {
  for (std::size_t i = 0; i < plan.num_kernels; ++i) {
    if (plan.blocks[i] <= kMaxBlocks) continue;
    return "found " + std::to_string(plan.blocks[i]) + " blocks of " + plan.kernels[i].entry +
           "; a grid has fewer than 2^31 of them";
  }
  return {};
}

core::Result<CudaPlan> ask(const Family& family, Pass pass, const Problem& problem,
                           const DeviceFacts& facts, core::Access access) {
  core::Result<CudaPlan> planned =
      family.plan(pass, problem, facts, std::min(access, core::best_access(pass, problem)));
  if (!planned.ok()) return planned;
  if (std::string why = grid_refusal(planned.value()); !why.empty()) {
    return core::Result<CudaPlan>::none(std::move(why));
  }
  return planned;
}

void finish(const Family& family, std::string refusals, CudaPlan& plan) {
  plan.family = &family;
  plan.family_name = family.name();
  plan.refusals = std::move(refusals);
  for (const core::Slot& slot : core::slots_of(plan.pass, plan.problem)) {
    if (slot.use == core::Use::ignored || slot.use == core::Use::absent) continue;
    plan.tensors[plan.num_tensors++] = {slot.name, slot.view};
  }
}

}  // namespace

std::span<const Family* const> families() {
  static const Family* const list[] = {&sm80::family()};
  return list;
}

core::Result<CudaPlan> make_plan(Pass pass, const Problem& problem, const DeviceFacts& facts,
                                 core::Access access) {
  std::string refusals;
  std::string last;  // the reason of the family that takes most
  for (const Family* family : families()) {
    core::Result<CudaPlan> planned = ask(*family, pass, problem, facts, access);
    if (planned.ok()) {
      CudaPlan plan = std::move(planned).value();
      finish(*family, std::move(refusals), plan);
      return plan;
    }
    last = planned.reason();
    refusals += (refusals.empty() ? "" : "; ") + std::string(family->name()) + ": " + last;
  }
  return core::Result<CudaPlan>::none(std::move(last));
}

}  // namespace attn::cuda
