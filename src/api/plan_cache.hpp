// The plans of a Context: made once for each pass, device, problem and access. Plans also depend on
// the Context's number of threads and forced backend, but those never change.
#pragma once

#include <cstddef>
#include <memory>
#include <shared_mutex>
#include <unordered_map>
#include <vector>

#include "core/backend.hpp"
#include "core/signature.hpp"

namespace attn::api {

struct PlanKey {
  Pass pass = Pass::forward;
  Device device = Device::host;
  Problem problem;
  std::int32_t ordinal = 0;  // of the device
  core::Access access = core::Access::element;
  bool operator==(const PlanKey&) const = default;
};

struct Planned {
  const core::Backend* backend = nullptr;
  core::PlanPointer plan;
  std::vector<core::Slot> slots;  // of the problem
};

class PlanCache {
 public:
  // Null if there is none. Allocates nothing.
  [[nodiscard]] std::shared_ptr<const Planned> find(const PlanKey& key) const;
  void insert(const PlanKey& key, std::shared_ptr<const Planned> planned);
  void clear();

 private:
  struct Hash {
    std::size_t operator()(const PlanKey& key) const;
  };

  mutable std::shared_mutex mutex_;
  std::unordered_map<PlanKey, std::shared_ptr<const Planned>, Hash> plans_;
};

}  // namespace attn::api
