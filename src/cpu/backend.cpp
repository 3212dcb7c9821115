// The CPU backend behind the chain's interface.
#include "cpu/backend.hpp"

#include <memory>

#include "cpu/host/launch.hpp"
#include "cpu/host/plan.hpp"
#include "cpu/kernels/kernels.hpp"

namespace attn::cpu {
namespace {

class CpuBackend final : public core::Backend {
 public:
  const char* name() const override { return "cpu"; }
  Device device() const override { return Device::host; }

  bool usable(std::string& detail) const override {
    detail = std::string(target_name()) + " (usable: " + usable_target_names() + "), bf16 by " +
             to_string(bf16_problems_engine());
    return true;
  }

  core::Result<core::PlanPointer> plan(Pass pass, const Problem& problem, core::Access,
                                       const core::Executor& executor) const override {
    return core::PlanPointer(
        std::make_shared<const CpuPlan>(pass, problem, executor.threads, bf16_problems_engine()));
  }

  core::Status prepare(const core::Plan&, const core::Executor&) const override {
    target_name();  // the choice of instruction set is all that a first call would do
    return {};
  }

  core::Status launch(const core::Plan& plan, const Arguments& arguments,
                      const core::Executor& executor) const override {
    target_name();
    cpu::launch(static_cast<const CpuPlan&>(plan), arguments, executor);
    return {};
  }

  core::Status merge(const MergeArguments& arguments,
                     const core::Executor& executor) const override {
    launch_merge(arguments, executor);
    return {};
  }
  core::Status merge_backward(const MergeBackwardArguments& arguments,
                              const core::Executor& executor) const override {
    launch_merge_backward(arguments, executor);
    return {};
  }
  core::Status rope(const RopeArguments& arguments, const core::Executor& executor) const override {
    launch_rope(arguments, executor);
    return {};
  }
};

}  // namespace

const core::Backend& backend() {
  static const CpuBackend instance;
  return instance;
}

}  // namespace attn::cpu
