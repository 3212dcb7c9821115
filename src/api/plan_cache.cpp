// The plans of a Context: see plan_cache.hpp.
#include "api/plan_cache.hpp"

#include <mutex>
#include <utility>

namespace attn::api {

namespace {

// Bounds the memory if many lengths occur. Plans are cheap to compute again.
constexpr std::size_t kMaxPlans = 4096;

}  // namespace

std::size_t PlanCache::Hash::operator()(const PlanKey& key) const {
  const auto tag = static_cast<std::size_t>(key.pass) * 3 + static_cast<std::size_t>(key.device) +
                   static_cast<std::size_t>(key.access) * 9 +
                   static_cast<std::size_t>(key.ordinal) * 27;
  return hash_value(key.problem) + tag * std::size_t{0x9E3779B97F4A7C15u};
}

std::shared_ptr<const Planned> PlanCache::find(const PlanKey& key) const {
  const std::shared_lock lock(mutex_);
  const auto it = plans_.find(key);
  return it == plans_.end() ? nullptr : it->second;
}

void PlanCache::insert(const PlanKey& key, std::shared_ptr<const Planned> planned) {
  const std::unique_lock lock(mutex_);
  if (plans_.size() >= kMaxPlans) plans_.clear();
  plans_.insert_or_assign(key, std::move(planned));
}

void PlanCache::clear() {
  const std::unique_lock lock(mutex_);
  plans_.clear();
}

}  // namespace attn::api
