// Context: turns options into threads, pool, plan cache and the choice of a backend.
#include <attn/context.hpp>
#include <string>
#include <utility>

#include "api/state.hpp"
#include "api/threads.hpp"
#include "core/validate.hpp"

namespace attn {

namespace {

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCode::invalid_argument, "Context: " + message);
}

core::Executor executor_of(const ContextOptions& options) {
  if (options.threads < 0 || options.threads > core::kMaxThreads) {
    refuse("threads: found " + std::to_string(options.threads) + "; accepted 0 to " +
           std::to_string(core::kMaxThreads));
  }
  core::Executor executor;
  executor.threads = options.threads > 0 ? options.threads : api::default_threads();
  executor.parallel_for = options.parallel_for;
  executor.user = options.parallel_for_user;
  if (executor.parallel_for == nullptr) {
    executor.parallel_for = api::default_parallel_for;
    executor.user = nullptr;
    if (!api::has_threads()) executor.threads = 1;
  }
  return executor;
}

}  // namespace

Context::State::State(const ContextOptions& options, core::Backends all)
    : backends(all),
      forced(options.backend),
      executor(executor_of(options)),
      pool(options.pool_bytes),
      cache_dir(options.cache_dir) {
  if (options.pool_bytes < 0) {
    refuse("pool_bytes: found " + std::to_string(options.pool_bytes) + "; accepted 0 and more");
  }
  if (!forced.empty() && core::find(backends, forced) == nullptr) {
    refuse("backend: found '" + forced + "'; accepted " + core::names(backends));
  }
  api::watch_forks();
}

api::Place api::place_of(const TensorView& view) {
  return {view.device, view.device == Device::cuda ? view.ordinal : 0};
}

api::Place Context::State::place_for(Device asked) const {
  api::Place place{asked, 0};
  if (asked == Device::host && !forced.empty()) {
    place.device = core::find(backends, forced)->device();
  }
  for (const core::Backend* backend : backends) {
    if (backend->device() == place.device) {
      place.ordinal = backend->current_ordinal();
      break;
    }
  }
  return place;
}

core::Executor Context::State::executor_on(api::Place place) const {
  core::Executor there = executor;
  there.ordinal = place.ordinal;
  there.cache_dir = cache_dir.c_str();
  return there;
}

std::shared_ptr<const api::Planned> Context::State::planned(Pass pass, const Problem& problem,
                                                            api::Place place, core::Access access) {
  const api::PlanKey key{pass, place.device, problem, place.ordinal, access};
  if (auto found = plans.find(key)) return found;
  api::check(core::validate_problem(pass, problem));
  const core::Executor there = executor_on(place);
  const core::PlanRequest request{pass, problem, access, there};
  core::Demand wanted = demand(place);
  wanted.request = &request;
  core::Answer answer = core::choose(backends, wanted);
  if (answer.can) return keep(key, std::move(answer));
  throw Error(ErrorCode::unsupported, std::string(to_string(pass)) +
                                          ": no backend can: " + core::reasons(backends, wanted));
}

std::shared_ptr<const api::Planned> Context::State::keep(const api::PlanKey& key,
                                                         core::Answer answer) {
  const core::Slots slots = core::slots_of(key.pass, key.problem);
  auto planned = std::make_shared<const api::Planned>(
      api::Planned{answer.backend, std::move(answer.plan), {slots.begin(), slots.end()}});
  plans.insert(key, planned);
  return planned;
}

const core::Backend& Context::State::backend_for(const char* function, api::Place place) {
  std::atomic<const core::Backend*>& usable = usable_.at(static_cast<std::size_t>(place.device));
  if (const core::Backend* backend = usable.load(std::memory_order_acquire)) return *backend;
  const core::Demand wanted = demand(place);
  if (const core::Backend* backend = core::choose(backends, wanted).backend) {
    usable.store(backend, std::memory_order_release);
    return *backend;
  }
  throw Error(ErrorCode::unsupported,
              std::string(function) + ": no backend can: " + core::reasons(backends, wanted));
}

void api::check(const core::Status& status) {
  if (!status.ok()) throw Error(status.code, status.message);
}

Context::Context(const ContextOptions& options)
    : state_(std::make_unique<State>(options, api::all_backends())) {}

Context::~Context() = default;

std::int32_t Context::threads() const {
  return state_->executor.threads;
}

}  // namespace attn
