// The functions that run no kernel: prepare, validate, supports, plan, explain, workspace_bytes,
// output_shapes, backends, version.
#include <attn/attn.hpp>
#include <string>
#include <utility>

#include "api/state.hpp"
#include "core/outputs.hpp"
#include "core/validate.hpp"

namespace attn {

namespace {

PlanSummary summary_of(const core::Backend& backend, const core::Plan& plan) {
  PlanSummary summary = plan.summary();
  summary.backend = backend.name();
  return summary;
}

}  // namespace

void prepare(Context& context, Pass pass, const Problem& problem, Device device) {
  Context::State& state = context.state();
  const api::Place place = state.place_for(device);
  const auto planned = state.planned(pass, problem, place);
  api::check(planned->backend->prepare(*planned->plan, state.executor_on(place)));
}

std::int64_t workspace_bytes(Context& context, Pass pass, const Problem& problem, Device device) {
  Context::State& state = context.state();
  return state.planned(pass, problem, state.place_for(device))->plan->workspace_bytes;
}

void validate(Pass pass, const Problem& problem, const Arguments& arguments) {
  api::check(core::validate(pass, problem, arguments));
}

Outputs output_shapes(Pass pass, const Problem& problem) {
  api::check(core::validate_problem(pass, problem));
  return core::outputs_of(pass, problem);
}

Verdict supports(Context& context, Pass pass, const Problem& problem, Device device) {
  api::check(core::validate_problem(pass, problem));
  Context::State& state = context.state();
  const api::Place place = state.place_for(device);
  const core::Access access = core::best_access(pass, problem);
  const api::PlanKey key{pass, place.device, problem, place.ordinal, access};
  if (const auto known = state.plans.find(key)) return {true, known->backend->name(), ""};
  const core::Executor there = state.executor_on(place);
  const core::PlanRequest request{pass, problem, access, there};
  core::Demand demand = state.demand(place);
  demand.request = &request;
  core::Answer answer = core::choose(state.backends, demand);
  if (!answer.can) return {false, "", core::reasons(state.backends, demand)};
  return {true, state.keep(key, std::move(answer))->backend->name(), ""};
}

PlanSummary plan(Context& context, Pass pass, const Problem& problem, Device device) {
  Context::State& state = context.state();
  const auto planned = state.planned(pass, problem, state.place_for(device));
  return summary_of(*planned->backend, *planned->plan);
}

std::string explain(Context& context, Pass pass, const Problem& problem, Device device) {
  Context::State& state = context.state();
  std::string text = std::string("problem: ") + to_string(pass) + " " + to_string(problem) + "\n";
  const core::Status status = core::validate_problem(pass, problem);
  text += "validate: " + (status.ok() ? std::string("ok") : status.message) + "\n";
  if (!status.ok()) return text;
  const api::Place place = state.place_for(device);
  const core::Executor there = state.executor_on(place);
  const core::PlanRequest request{pass, problem, core::best_access(pass, problem), there};
  core::Demand demand = state.demand(place);
  demand.request = &request;
  const std::vector<core::Answer> answers = core::ask_all(state.backends, demand);
  const core::Answer* chosen = nullptr;  // the first that supports the call, as in choose()
  for (const core::Answer& answer : answers) {
    if (chosen == nullptr && answer.can) chosen = &answer;
    const char* verdict = &answer == chosen ? "runs it" : answer.can ? "could run it" : "no";
    text += std::string("backend ") + answer.backend->name() + ": " + verdict;
    if (!answer.reason.empty()) text.append(": ").append(answer.reason);
    text += "\n";
  }
  if (chosen == nullptr) return text + "plan: none\n";
  const PlanSummary plan = summary_of(*chosen->backend, *chosen->plan);
  text += std::string("access: ") + core::to_string(request.access) + "\n";
  text += "plan: kernel=" + plan.kernel + " tile_q=" + std::to_string(plan.tile_q) +
          " tile_kv=" + std::to_string(plan.tile_kv) + " tasks=" + std::to_string(plan.tasks) +
          " workspace_bytes=" + std::to_string(plan.workspace_bytes) +
          " threads=" + std::to_string(state.executor.threads) + "\n";
  if (!plan.config.empty()) text.append("config: ").append(plan.config).append("\n");
  if (!plan.family.empty()) {
    text.append("family: ").append(plan.family);
    if (!plan.refusals.empty()) text.append(" (").append(plan.refusals).append(")");
    text += "\n";
  }
  text += "kernels:";
  for (const std::string& kernel : plan.kernels) text.append(" ").append(kernel);
  return text + "\n";
}

std::vector<BackendInfo> backends(Context& context) {
  std::vector<BackendInfo> list;
  for (const core::Backend* backend : context.state().backends) {
    BackendInfo info;
    info.name = backend->name();
    info.built = backend->built();
    info.usable = backend->usable(info.detail);
    list.push_back(std::move(info));
  }
  return list;
}

const char* version() {
  return ATTN_VERSION;
}

}  // namespace attn
