// `attn tune`: measures the tiles that could hold on a device for the kernels of some cells, each
// verified against the reference first, and keeps the fastest for later processes.
#pragma once

#include <cstdint>
#include <string>

#include "bench/command.hpp"

namespace attn::bench {

struct TuneOptions {
  BenchOptions cells;           // which, and on what device; the rest is not read
  double seconds = 0.02;        // spent on each measurement of the first round
  std::int64_t most_cells = 3;  // measured for one kernel, evenly spread
  bool keep = true;             // store what was found
  bool print_table = false;     // rows for src/cuda/host/table.cpp
};

// 0: measured and kept. 1: some tiles gave a wrong result (they are named). Throws Error where
// there is no such device, std::invalid_argument for bad options.
int run_tune_command(const TuneOptions& options);

}  // namespace attn::bench
