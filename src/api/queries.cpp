// The calls that answer: supports, plan, explain, workspace_bytes, output_shapes, backends,
// version.
#include <attn/attn.hpp>
#include <string>

#include "api/state.hpp"
#include "core/outputs.hpp"
#include "core/validate.hpp"

namespace attn {

namespace {

std::string config_text(const core::Plan& plan) {
  std::string text;
  for (const core::ConfigEntry& entry : plan.config) {
    if (entry.name == nullptr) break;
    if (!text.empty()) text += ' ';
    text.append(entry.name).append("=").append(std::to_string(entry.value));
  }
  return text;
}

PlanSummary summary_of(const api::Planned& planned) {
  const core::Plan& plan = planned.plan;
  return {planned.backend->name(),
          plan.kernel,
          config_text(plan),
          plan.tile_q,
          plan.tile_kv,
          plan.tasks,
          plan.workspace_bytes};
}

core::Demand demand_of(const Context::State& state, Pass pass, const Problem& problem,
                       api::Place place) {
  core::Demand demand = state.demand(place);
  demand.pass = pass;
  demand.problem = &problem;
  return demand;
}

}  // namespace

void prepare(Context& context, Pass pass, const Problem& problem, Device device) {
  Context::State& state = context.state();
  const api::Place place = state.place_for(device);
  const auto planned = state.planned(pass, problem, place);
  api::check(planned->backend->prepare(pass, problem, planned->plan, state.executor_on(place)));
}

std::int64_t workspace_bytes(Context& context, Pass pass, const Problem& problem, Device device) {
  Context::State& state = context.state();
  return state.planned(pass, problem, state.place_for(device))->plan.workspace_bytes;
}

Outputs output_shapes(Pass pass, const Problem& problem) {
  api::check(core::validate_problem(pass, problem));
  return core::outputs_of(pass, problem);
}

Verdict supports(Context& context, Pass pass, const Problem& problem, Device device) {
  api::check(core::validate_problem(pass, problem));
  const Context::State& state = context.state();
  const core::Demand demand = demand_of(state, pass, problem, state.place_for(device));
  if (const core::Backend* backend = core::choose(state.backends, demand)) {
    return {true, backend->name(), ""};
  }
  return {false, "", core::reasons(state.backends, demand)};
}

PlanSummary plan(Context& context, Pass pass, const Problem& problem, Device device) {
  Context::State& state = context.state();
  return summary_of(*state.planned(pass, problem, state.place_for(device)));
}

std::string explain(Context& context, Pass pass, const Problem& problem, Device device) {
  Context::State& state = context.state();
  std::string text = std::string("problem: ") + to_string(pass) + " " + to_string(problem) + "\n";
  const core::Status status = core::validate_problem(pass, problem);
  text += "validate: " + (status.ok() ? std::string("ok") : status.message) + "\n";
  if (!status.ok()) return text;
  const api::Place place = state.place_for(device);
  const core::Demand demand = demand_of(state, pass, problem, place);
  const core::Backend* chosen = core::choose(state.backends, demand);
  for (const core::Answer& answer : core::ask_all(state.backends, demand)) {
    const char* verdict = answer.backend == chosen ? "runs it" : answer.can ? "could run it" : "no";
    text += std::string("backend ") + answer.backend->name() + ": " + verdict;
    if (!answer.reason.empty()) text.append(": ").append(answer.reason);
    text += "\n";
  }
  if (chosen == nullptr) return text + "plan: none\n";
  const PlanSummary plan = summary_of(*state.planned(pass, problem, place));
  text += "plan: kernel=" + plan.kernel + " tile_q=" + std::to_string(plan.tile_q) +
          " tile_kv=" + std::to_string(plan.tile_kv) + " tasks=" + std::to_string(plan.tasks) +
          " workspace_bytes=" + std::to_string(plan.workspace_bytes) +
          " threads=" + std::to_string(state.executor.threads) + "\n";
  if (!plan.config.empty()) text.append("config: ").append(plan.config).append("\n");
  return text;
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
