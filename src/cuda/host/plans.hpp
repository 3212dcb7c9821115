// Plans: the DevicePlans of calls that were made, so that a call looks its plan up.
#pragma once

#include <memory>
#include <shared_mutex>
#include <unordered_map>

#include "cuda/host/plan.hpp"

namespace attn::cuda {

class Plans {
 public:
  // Made by make_plan() where it was not there. Finding one allocates nothing.
  std::shared_ptr<const DevicePlan> get(Pass pass, const Problem& problem,
                                        const DeviceFacts& facts);

  void clear();

 private:
  struct Key {
    Pass pass;
    std::int32_t ordinal;
    Problem problem;
    bool operator==(const Key&) const = default;
  };
  struct Hash {
    std::size_t operator()(const Key& key) const;
  };

  std::shared_mutex mutex_;
  std::unordered_map<Key, std::shared_ptr<const DevicePlan>, Hash> plans_;
};

}  // namespace attn::cuda
