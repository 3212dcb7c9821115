// The family sm90; see family.hpp.
#include "cuda/families/sm90/family.hpp"

#include <utility>

#include "cuda/families/sm90/forward_params.hpp"
#include "cuda/families/sm90/forward_plan.hpp"

namespace attn::cuda::sm90 {
namespace {

class Sm90 final : public Family {
 public:
  const char* name() const override { return "sm90"; }

  core::Result<CudaPlan> plan(Pass pass, const Problem& problem, const DeviceFacts& facts,
                              core::Access access) const override {
    std::string why = forward_refusal(pass, problem, facts, access);
    if (!why.empty()) return core::Result<CudaPlan>::none(std::move(why));
    return plan_forward(problem, facts);
  }

  core::Status set_parameters(const ParameterSources& from, std::span<KernelLaunch> launches,
                              ParameterMemory& memory) const override {
    return set_forward_params(from, launches, memory);
  }
};

}  // namespace

const Family& family() {
  static const Sm90 instance;
  return instance;
}

}  // namespace attn::cuda::sm90
