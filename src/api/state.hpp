// What a Context holds.
#pragma once

#include <array>
#include <atomic>
#include <attn/context.hpp>
#include <string>

#include "api/plan_cache.hpp"
#include "api/pool.hpp"
#include "core/registry.hpp"

namespace attn {

class __attribute__((visibility("hidden"))) Context::State {
 public:
  State(const ContextOptions& options, core::Backends all);

  // The device that questions without tensors are about: that of the forced backend, if any.
  [[nodiscard]] Device device_for(Device asked) const;
  // Finds or makes the plan. Throws Error: invalid_argument, unsupported.
  [[nodiscard]] api::Planned planned(Pass pass, const Problem& problem, Device device);
  // The backend for work that has no Problem. Throws Error: unsupported.
  [[nodiscard]] const core::Backend& backend_for(const char* function, Device device);
  [[nodiscard]] core::Demand demand(Device device) const { return {forced, device, {}, nullptr}; }

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
