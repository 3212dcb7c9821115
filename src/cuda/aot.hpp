// Ahead of time: binaries compiled before they are needed, also for devices that are not here.
#pragma once

#include <attn/cache.hpp>
#include <span>
#include <string>
#include <vector>

#include "core/status.hpp"
#include "cuda/families/make_plan.hpp"

namespace attn::cuda {

// What calls need on a device.
struct Wanted {
  std::vector<KernelSpec> kernels;  // each once
  std::int64_t refused = 0;         // calls that no kernel is for
  std::string reason;               // of the first of them
};

// A pure function, like the plans that it collects. The calls were validated.
Wanted kernels_for(std::span<const CacheRequest::Call> calls, const DeviceFacts& facts,
                   FamilyChoice choice = FamilyChoice::automatic);

// See attn/cache.hpp. `cache_root` as of Binaries::of.
core::Status build_ahead_of_time(const CacheRequest& request, const std::string& cache_root,
                                 CacheResult& result);

}  // namespace attn::cuda
