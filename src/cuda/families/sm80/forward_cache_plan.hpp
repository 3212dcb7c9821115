// Plans of sm80/forward_cache.cu: forward and decode on caches that sm80/forward.cu can't read, in
// f32 and for dims above 256.
#pragma once

#include "cuda/families/family.hpp"

namespace attn::cuda::sm80 {

inline constexpr const char* kForwardCacheEntry = "attn_forward_cache";

// Whether the problem has pages, rows to append, or 8-bit k and v, and is f32 or has dims above
// 256. Above dim 256 there is one launch for each kMaxValueDim columns of v and o.
bool uses_forward_cache_kernel(Pass pass, const Problem& p);

core::Status set_forward_cache_params(const ParameterSources& from,
                                      std::span<KernelLaunch> launches, ParameterMemory& memory);

}  // namespace attn::cuda::sm80
