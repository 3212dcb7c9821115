// Shipped: the calls whose kernels `attn cache build` compiles by default and CI compiles.
#pragma once

#include <attn/cache.hpp>
#include <vector>

namespace attn::bench {

// The distinct (pass, problem) of every case of the list, including pairs of options, and of every
// benchmark cell, in f16 and bf16.
std::vector<CacheRequest::Call> shipped_calls();

}  // namespace attn::bench
