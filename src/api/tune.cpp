// Tuning: calls the backend of a device and drops cached plans.
#include <attn/tune.hpp>
#include <string>

#include "api/state.hpp"
#include "core/validate.hpp"

namespace attn {

namespace {

// The backend that runs the problem, with its executor.
struct Tuned {
  const core::Backend& backend;
  core::Executor executor;
};

Tuned tuned_for(Context& context, Pass pass, const Problem& problem, Device device) {
  Context::State& state = context.state();
  const api::Place place = state.place_for(device);
  return {*state.planned(pass, problem, place)->backend, state.executor_on(place)};
}

}  // namespace

std::string tune_key(Context& context, Pass pass, const Problem& problem, Device device) {
  const Tuned tuned = tuned_for(context, pass, problem, device);
  std::string key;
  api::check(tuned.backend.tune_key(pass, problem, tuned.executor, key));
  return key;
}

std::vector<TuneCandidate> tune_candidates(Context& context, Pass pass, const Problem& problem,
                                           Device device) {
  const Tuned tuned = tuned_for(context, pass, problem, device);
  std::vector<TuneCandidate> candidates;
  api::check(tuned.backend.tune_candidates(pass, problem, tuned.executor, candidates));
  return candidates;
}

void tune_use(Context& context, Pass pass, const Problem& problem, const std::string& tiles,
              Device device) {
  const Tuned tuned = tuned_for(context, pass, problem, device);
  api::check(tuned.backend.tune_use(pass, problem, tiles, tuned.executor));
  context.state().plans.clear();
}

std::string tune_store(Context& context, Device device) {
  const Context::State& state = context.state();
  const api::Place place = state.place_for(device);
  core::Demand demand = state.demand(place);
  const core::Backend* backend = core::choose(state.backends, demand).backend;
  if (backend == nullptr) {
    throw Error(ErrorCode::unsupported,
                "tune_store: no backend can: " + core::reasons(state.backends, demand));
  }
  std::string path;
  api::check(backend->tune_store(state.executor_on(place), path));
  return path;
}

}  // namespace attn
