// `attn tune`: measures the tiles that fit a device for the kernels of some cells. Each candidate
// is verified against the reference first. The fastest is stored for later processes.
#pragma once

#include <cstdint>
#include <string>

#include "bench/command.hpp"

namespace attn::bench {

struct TuneOptions {
  BenchOptions cells;  // cells and device; other fields are not read
  // Seconds of a measurement in the first round. 0 means 0.02 on a GPU and 0.1 on the CPU, where
  // calls take longer.
  double seconds = 0.0;
  std::int64_t most_cells = 3;  // per kernel, evenly spaced
  bool keep = true;             // store the result
  bool print_table = false;     // rules for src/cuda/families/sm80/heuristics.cpp
};

// 0: measured and stored. 1: some tiles gave a wrong result (they are named). Throws Error if the
// device does not exist, std::invalid_argument for bad options.
int run_tune_command(const TuneOptions& options);

}  // namespace attn::bench
