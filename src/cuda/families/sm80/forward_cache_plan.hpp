// Plans of sm80/forward_cache.cu: forward and decode in f32 on caches that sm80/forward.cu can't
// read.
#pragma once

#include "cuda/families/family.hpp"

namespace attn::cuda::sm80 {

inline constexpr const char* kForwardCacheEntry = "attn_forward_cache";

// Whether the problem is f32 with pages, rows to append, or k and v in int8.
bool uses_forward_cache_kernel(Pass pass, const Problem& p);

core::Status set_forward_cache_params(const ParameterSources& from,
                                      std::span<KernelLaunch> launches, ParameterMemory& memory);

}  // namespace attn::cuda::sm80
