// Shipped: the calls whose kernels are made ahead by default and compiled in continuous
// integration.
#pragma once

#include <attn/cache.hpp>
#include <vector>

namespace attn::bench {

// Pass and problem, each once, of every case of the list (with pairs of options in every type) and
// of every benchmark cell, in f16 and bf16.
std::vector<CacheRequest::Call> shipped_calls();

}  // namespace attn::bench
