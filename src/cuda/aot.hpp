// Compiles binaries ahead of time, also for devices that this machine does not have.
#pragma once

#include <attn/cache.hpp>
#include <span>
#include <string>
#include <vector>

#include "core/status.hpp"
#include "cuda/families/make_plan.hpp"

namespace attn::cuda {

// The kernels that calls need on a device.
struct Wanted {
  std::vector<KernelSpec> kernels;  // without duplicates
  std::int64_t refused = 0;         // number of calls that no kernel supports
  std::string reason;               // why the first of them was refused
};

// A pure function, like the plans that it collects. The calls must be validated.
Wanted kernels_for(std::span<const CacheRequest::Call> calls, const DeviceFacts& facts,
                   FamilyChoice choice = FamilyChoice::automatic);

// See attn/cache.hpp. `cache_root` as for Binaries::of.
core::Status build_ahead_of_time(const CacheRequest& request, const std::string& cache_root,
                                 CacheResult& result);

}  // namespace attn::cuda
