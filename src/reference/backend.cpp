// The reference as a backend: see backend.hpp.
#include "reference/backend.hpp"

#include <memory>
#include <new>
#include <string>
#include <utility>

#include "reference/reference.hpp"

namespace attn::reference {

namespace {

// Runs `body`, which returns "" or the problem, and converts the result to a Status.
template <class Body>
core::Status status_of(Body body) {
  try {
    std::string problem = body();
    if (problem.empty()) return {};
    return core::Status::invalid(std::move(problem));
  } catch (const std::bad_alloc&) {
    return {ErrorCode::out_of_memory, "reference: not enough memory for its float64 copies"};
  }
}

struct ReferencePlan final : core::Plan {
  using core::Plan::Plan;
  [[nodiscard]] const char* function() const {
    return pass == Pass::backward ? "reference_backward" : "reference_forward";
  }
  [[nodiscard]] PlanSummary summary() const override {
    PlanSummary to;
    to.kernel = function();
    to.tile_q = 1;
    to.tile_kv = 1;
    to.tasks = problem.batch * problem.heads_q;
    to.kernels = {function()};
    return to;
  }
};

class ReferenceBackend final : public core::Backend {
 public:
  [[nodiscard]] const char* name() const override { return "reference"; }
  [[nodiscard]] Device device() const override { return Device::host; }
  [[nodiscard]] bool automatic() const override { return false; }
  [[nodiscard]] bool usable(std::string& detail) const override {
    detail = "float64, naive, one thread";
    return true;
  }

  [[nodiscard]] core::Result<core::PlanPointer> plan(Pass pass, const Problem& problem,
                                                     core::Access,
                                                     const core::Executor&) const override {
    return core::PlanPointer(std::make_shared<const ReferencePlan>(pass, problem));
  }

  core::Status prepare(const core::Plan&, const core::Executor&) const override { return {}; }

  core::Status launch(const core::Plan& plan, const Arguments& arguments,
                      const core::Executor& executor) const override {
    executor.report_launch(static_cast<const ReferencePlan&>(plan).function());
    return status_of([&] {
      switch (plan.pass) {
        case Pass::forward: return reference::forward(plan.problem, arguments, executor.interrupt);
        case Pass::backward:
          return reference::backward(plan.problem, arguments, executor.interrupt);
        case Pass::decode: return reference::decode(plan.problem, arguments, executor.interrupt);
      }
      return std::string("reference: no such pass");
    });
  }

  core::Status merge(const MergeArguments& arguments, const core::Executor&) const override {
    return status_of([&] { return reference::merge(arguments); });
  }
  core::Status merge_backward(const MergeBackwardArguments& arguments,
                              const core::Executor&) const override {
    return status_of([&] { return reference::merge_backward(arguments); });
  }
  core::Status rope(const RopeArguments& arguments, const core::Executor&) const override {
    return status_of([&] { return reference::rope(arguments); });
  }
};

}  // namespace

const core::Backend& backend() {
  static const ReferenceBackend instance;
  return instance;
}

}  // namespace attn::reference
