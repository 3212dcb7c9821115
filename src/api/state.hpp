// What a Context holds.
#pragma once

#include <array>
#include <atomic>
#include <attn/context.hpp>
#include <memory>
#include <string>

#include "api/plan_cache.hpp"
#include "api/pool.hpp"
#include "core/registry.hpp"

namespace attn {

namespace api {

// A device and which one of its kind.
struct Place {
  Device device = Device::host;
  std::int32_t ordinal = 0;
};

// Where a tensor is.
Place place_of(const TensorView& view);

}  // namespace api

class __attribute__((visibility("hidden"))) Context::State {
 public:
  State(const ContextOptions& options, core::Backends all);

  // The device of queries without tensors: the requested one, else that of a forced backend; among
  // several of its kind the calling thread's current one.
  [[nodiscard]] api::Place place_for(Device asked) const;
  // Finds or makes the plan of calls whose tensors allow `access`. Throws Error: invalid_argument,
  // unsupported.
  [[nodiscard]] std::shared_ptr<const api::Planned> planned(Pass pass, const Problem& problem,
                                                            api::Place place, core::Access access);
  // The same for questions without tensors: with the best access that the problem allows.
  [[nodiscard]] std::shared_ptr<const api::Planned> planned(Pass pass, const Problem& problem,
                                                            api::Place place) {
    return planned(pass, problem, place, core::best_access(pass, problem));
  }
  // Keeps a plan that a backend has made.
  std::shared_ptr<const api::Planned> keep(const api::PlanKey& key, core::Answer answer);
  // The backend for work that has no Problem. Throws Error: unsupported.
  [[nodiscard]] const core::Backend& backend_for(const char* function, api::Place place);
  [[nodiscard]] core::Demand demand(api::Place place) const {
    return {forced, place.device, nullptr};
  }
  [[nodiscard]] core::Executor executor_on(api::Place place) const;

  core::Backends backends;
  std::string forced;
  core::Executor executor;
  api::PlanCache plans;
  api::Pool pool;
  std::string cache_dir;

 private:
  // The answers of backend_for, by device; null until asked.
  std::array<std::atomic<const core::Backend*>, 3> usable_{};
};

namespace api {

// All that this build knows of, in order of preference.
core::Backends all_backends();

// Throws Error where the status is not ok.
void check(const core::Status& status);

}  // namespace api
}  // namespace attn
