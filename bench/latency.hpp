// `attn bench --latency`: what is paid before and around the work of a GPU: the start of driver and
// compiler, first calls with and without a filled cache, and the host's time for a call.
#pragma once

#include <string>

namespace attn::bench {

struct BenchOptions;

// 0; 1 where something failed. Throws attn::Error where there is no such device.
int run_latency(const BenchOptions& options);

}  // namespace attn::bench
