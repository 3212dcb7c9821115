// Context::State: the contents of a Context.
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

// A kind of device, and the index of the device of that kind.
struct Place {
  Device device = Device::host;
  std::int32_t ordinal = 0;
};

// The place of a tensor's memory.
Place place_of(const TensorView& view);

}  // namespace api

class __attribute__((visibility("hidden"))) Context::State {
 public:
  State(const ContextOptions& options, core::Backends all);

  // The device for queries without tensors: the requested kind, or for Device::host the kind of the
  // forced backend. Its index is that of the calling thread's current device.
  [[nodiscard]] api::Place place_for(Device asked) const;
  // Finds or makes the plan of calls whose tensors allow `access`. Throws Error: invalid_argument,
  // unsupported.
  [[nodiscard]] std::shared_ptr<const api::Planned> planned(Pass pass, const Problem& problem,
                                                            api::Place place, core::Access access);
  // The same for queries without tensors: assumes the best access that the problem allows.
  [[nodiscard]] std::shared_ptr<const api::Planned> planned(Pass pass, const Problem& problem,
                                                            api::Place place) {
    return planned(pass, problem, place, core::best_access(pass, problem));
  }
  // Stores a plan that a backend has made.
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
  // Results of backend_for, by device; null until the first call.
  std::array<std::atomic<const core::Backend*>, 3> usable_{};
};

namespace api {

// All backends and stubs of this build, in order of preference.
core::Backends all_backends();

// Throws Error if the status is not ok.
void check(const core::Status& status);

}  // namespace api
}  // namespace attn
