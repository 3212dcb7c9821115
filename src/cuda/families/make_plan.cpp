// The choice of a family; see make_plan.hpp.
#include "cuda/families/make_plan.hpp"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>

#include "core/signature.hpp"
#include "cuda/families/rotary.hpp"
#include "cuda/families/sm80/heuristics.hpp"
#include "cuda/families/sm80/plan.hpp"
#include "cuda/families/sm90/family.hpp"

namespace attn::cuda {
namespace {

// Why the kernels can't be launched; "" if they can.
std::string grid_refusal(const CudaPlan& plan) {
  for (std::size_t i = 0; i < plan.num_kernels; ++i) {
    if (plan.blocks[i] <= kMaxBlocks) continue;
    return "found " + std::to_string(plan.blocks[i]) + " blocks of " + plan.kernels[i].entry +
           "; a grid has fewer than 2^31 of them";
  }
  return {};
}

// With rotary embedding, the backward's main kernel has neither `accumulate` nor `nonfinite_zero`:
// the rope pass after it applies them to dq, dk and dv, and separate kernels of dbias apply them to
// dbias, except that of sm90. Returns whether the main kernel or sm90's writes dbias, which would
// then lack them.
bool loses_dbias_options(Pass pass, const Problem& p, const CudaPlan& plan) {
  if (pass != Pass::backward || !p.dbias || !(p.accumulate || p.nonfinite_zero)) return false;
  const auto specs = plan.specs();
  return std::none_of(specs.begin(), specs.end(), [](const KernelSpec& spec) {
    return std::string_view(spec.entry).starts_with("attn_bias_gradient");
  });
}

// Whether the rope pass runs before the family's kernels, which then read copies: it rotates q and
// k, and copies f8 queries in a 16-bit type for all families but sm90.
bool runs_on_copies(const Family& family, const Problem& problem) {
  return problem.rope != Rope::none || (core::is_f8(problem.dtype) && &family != &sm90::family());
}

core::Result<CudaPlan> plan_with(const Family& family, Pass pass, const Problem& problem,
                                 const DeviceFacts& facts, core::Access access) {
  const bool copies = runs_on_copies(family, problem);
  if (copies) {
    if (std::string why = rotary_refusal(pass, problem); !why.empty()) {
      return core::Result<CudaPlan>::none(std::move(why));
    }
  }
  core::Result<CudaPlan> planned =
      family.plan(pass, copies ? problem_on_copies(pass, problem) : problem, facts,
                  std::min(access, core::best_access(pass, problem)));
  if (!planned.ok()) return planned;
  if (copies) {
    CudaPlan plan = std::move(planned).value();
    if (loses_dbias_options(pass, problem, plan)) {
      return core::Result<CudaPlan>::none(
          "writes dbias in a kernel that has neither accumulate nor nonfinite_zero with rotary "
          "embedding");
    }
    add_rotary(pass, problem, plan);
    planned = std::move(plan);
  }
  if (std::string why = grid_refusal(planned.value()); !why.empty()) {
    return core::Result<CudaPlan>::none(std::move(why));
  }
  return planned;
}

// Why a family leaves a problem that it supports to a faster family; "" if it does not. For narrow
// heads, forwards of sm80 are 1.1 to 1.3 times as fast as those of sm90, which pads them to dim 64.
// Backwards of sm90 are 1.2 times as fast as those of sm80 (H200).
std::string speed_refusal(const Family& family, Pass pass, const Problem& problem,
                          FamilyChoice choice) {
  const bool slower = choice == FamilyChoice::automatic && &family == &sm90::family() &&
                      pass == Pass::forward && sm80::is_narrow(problem);
  return slower ? "leaves dims up to 32 with a bias to sm80 (ATTN_CUDA_FAMILY=sm90 does not)" : "";
}

// The workspace that suffices for every family. The call's access decides which family runs it, but
// workspace_bytes() must answer without tensors.
std::int64_t max_workspace(Pass pass, const Problem& problem, const DeviceFacts& facts,
                           FamilyChoice choice) {
  std::int64_t bytes = 0;
  if (families(choice).size() == 1) return bytes;
  for (const Family* family : families(choice)) {
    const core::Result<CudaPlan> planned =
        plan_with(*family, pass, problem, facts, core::best_access(pass, problem));
    if (planned.ok()) bytes = std::max(bytes, planned.value().workspace_bytes);
  }
  return bytes;
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

FamilyChoice parse_family_choice(const char* text) {
  const std::string_view name = text != nullptr ? text : "";
  if (name == "sm80") return FamilyChoice::sm80;
  if (name == "sm90") return FamilyChoice::sm90;
  return FamilyChoice::automatic;
}

FamilyChoice family_choice() {
  static const FamilyChoice choice = parse_family_choice(std::getenv("ATTN_CUDA_FAMILY"));
  return choice;
}

std::span<const Family* const> families(FamilyChoice choice) {
  static const Family* const list[] = {&sm90::family(), &sm80::family()};
  return std::span(list).subspan(choice == FamilyChoice::sm80 ? 1 : 0);
}

core::Result<CudaPlan> make_plan(Pass pass, const Problem& problem, const DeviceFacts& facts,
                                 core::Access access, FamilyChoice choice) {
  std::string refusals;
  std::string last;  // the reason of the last family, which supports the most problems
  for (const Family* family : families(choice)) {
    std::string slower = speed_refusal(*family, pass, problem, choice);
    core::Result<CudaPlan> planned = slower.empty()
                                         ? plan_with(*family, pass, problem, facts, access)
                                         : core::Result<CudaPlan>::none(std::move(slower));
    if (planned.ok()) {
      CudaPlan plan = std::move(planned).value();
      finish(*family, std::move(refusals), plan);
      plan.access = access;
      plan.scratch_bytes = plan.workspace_bytes;
      plan.workspace_bytes =
          std::max(plan.workspace_bytes, max_workspace(pass, problem, facts, choice));
      return plan;
    }
    last = planned.reason();
    refusals += (refusals.empty() ? "" : "; ") + std::string(family->name()) + ": " + last;
  }
  return core::Result<CudaPlan>::none(std::move(last));
}

}  // namespace attn::cuda
