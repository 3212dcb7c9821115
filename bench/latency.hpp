// `attn bench --latency`: the costs outside a GPU's kernels: start of driver and compiler, first
// calls with an empty and with a filled cache, and host time per call.
#pragma once

#include <string>

namespace attn::bench {

struct BenchOptions;

// Returns 0, or 1 if something failed. Throws attn::Error if the device does not exist.
int run_latency(const BenchOptions& options);

}  // namespace attn::bench
