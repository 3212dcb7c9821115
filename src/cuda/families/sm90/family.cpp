// The family sm90; see family.hpp.
#include "cuda/families/sm90/family.hpp"

#include <string>
#include <string_view>
#include <utility>

#include "cuda/families/sm90/backward_params.hpp"
#include "cuda/families/sm90/backward_plan.hpp"
#include "cuda/families/sm90/bias_gradient_plan.hpp"
#include "cuda/families/sm90/forward_params.hpp"
#include "cuda/families/sm90/forward_plan.hpp"
#include "cuda/families/sm90/forward_tuning.hpp"
#include "cuda/families/sm90/map_encoder.hpp"

namespace attn::cuda::sm90 {
namespace {

constexpr int kCapability = 90;

std::string refusal(Pass pass, const Problem& problem, const DeviceFacts& facts,
                    core::Access access) {
  if (facts.capability() != kCapability) {
    return "needs compute capability 9.0, cuda:" + std::to_string(facts.ordinal) + " is " +
           to_string(facts);
  }
  if (pass == Pass::forward) return forward_refusal(problem, facts, access);
  if (pass == Pass::backward) return backward_refusal(problem, access);
  return std::string("has no kernel for the ") + to_string(pass);
}

class Sm90 final : public Family {
 public:
  const char* name() const override { return "sm90"; }

  core::Result<CudaPlan> plan(Pass pass, const Problem& problem, const DeviceFacts& facts,
                              core::Access access) const override {
    std::string why = refusal(pass, problem, facts, access);
    if (!why.empty()) return core::Result<CudaPlan>::none(std::move(why));
    CudaPlan plan =
        pass == Pass::backward ? plan_backward(problem, facts) : plan_forward(problem, facts);
    plan.tma = tma_tiles_of(plan.kernels[plan.main].config, problem.dtype);
    for (const KernelSpec& spec : plan.specs()) {
      if (std::string_view(spec.entry) == kBiasGradientEntry) plan.tma.stores_dbias = true;
    }
    return plan;
  }

  core::Status set_parameters(const ParameterSources& from, std::span<KernelLaunch> launches,
                              ParameterMemory& memory) const override {
    if (from.plan.pass == Pass::backward) return set_backward_params(from, launches, memory);
    return set_forward_params(from, launches, memory);
  }

  std::string tune_key(Pass pass, const Problem& problem) const override {
    return pass == Pass::forward ? tuning_key(problem) : "";
  }
  std::vector<std::string> tune_candidates(Pass, const Problem& problem,
                                           const DeviceFacts& facts) const override {
    std::vector<std::string> list;
    for (const Tiles& tiles : candidate_tiles(problem, facts)) list.push_back(to_string(tiles));
    return list;
  }
  std::string tune_misfit(Pass, const Problem& problem, const std::string& text,
                          const DeviceFacts& facts) const override {
    std::optional<Tiles> tiles = parse_tiles(text);
    if (!tiles) return "can't read the tiles";
    tiles->dim = rounded_dim(problem);
    return misfit(problem, *tiles, facts);
  }
};

}  // namespace

const Family& family() {
  static const Sm90 instance;
  return instance;
}

}  // namespace attn::cuda::sm90
