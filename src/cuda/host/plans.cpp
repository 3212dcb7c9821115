// Plans of calls; see plans.hpp.
#include "cuda/host/plans.hpp"

#include <mutex>
#include <utility>

namespace attn::cuda {
namespace {

// Problems of ever new lengths must not fill the memory; plans are cheap to make again.
constexpr std::size_t kMaxPlans = 4096;

}  // namespace

std::size_t Plans::Hash::operator()(const Key& key) const {
  const auto tag = static_cast<std::size_t>(key.pass) + 3 * static_cast<std::size_t>(key.ordinal);
  return hash_value(key.problem) + tag * std::size_t{0x9E3779B97F4A7C15u};
}

std::shared_ptr<const DevicePlan> Plans::get(Pass pass, const Problem& problem,
                                             const DeviceFacts& facts) {
  const Key key{pass, facts.ordinal, problem};
  {
    const std::shared_lock lock(mutex_);
    const auto found = plans_.find(key);
    if (found != plans_.end()) return found->second;
  }
  auto made = std::make_shared<const DevicePlan>(make_plan(pass, problem, facts));
  const std::unique_lock lock(mutex_);
  if (plans_.size() >= kMaxPlans) plans_.clear();
  return plans_.emplace(key, std::move(made)).first->second;
}

void Plans::clear() {
  const std::unique_lock lock(mutex_);
  plans_.clear();
}

}  // namespace attn::cuda
