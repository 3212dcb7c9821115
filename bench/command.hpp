// The benchmark command: the options of `attn bench`, and the function that runs it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/cells.hpp"

namespace attn::bench {

struct BenchOptions {
  // Which cells. Names are printed by `list`; "plain/f32/fwd/b1-h12-n1024-d64-causal" is one.
  std::string suite = "all";          // all (without pair), plain, options, decode, pair, quick
  std::string filter;                 // comma-separated substrings of names; empty = every cell
  std::vector<std::string> dtypes;    // "f32", "bf16", "f16", "f64"; empty = see cells()
  std::vector<std::string> passes;    // "fwd", "bwd", "decode"; empty = all
  std::vector<std::string> problems;  // texts of parse_problem() to time instead of a suite
  std::int64_t divide = 1;            // divides the lengths of the suite's cells, for a trial

  // How they run.
  std::string device;        // "host", "cuda", "cuda:1", "webgpu"; empty = the backend's own
  std::string backend;       // empty = automatic
  std::int32_t threads = 0;  // 0 = all processors in the affinity mask
  double seconds = 0.5;      // time spent on each measurement; at least three calls are made
  bool verify = true;        // compare with the float64 reference before timing
  // A Python interpreter with torch: plain cells alternate with PyTorch (A B A B); with `latency`,
  // rows include PyTorch's host time. Empty = no peer.
  std::string peer_python;

  bool latency = false;  // measure start-up, first calls and host time per call instead

  // Output. The table goes to stdout, progress to stderr.
  bool list = false;  // print the names of the cells and stop
  bool json = false;  // JSON lines to stdout instead of the table
  // Append the JSON lines to this file; "auto" = bench/results/<device>/<backend>.jsonl
  std::string out;
};

// The selected cells: by suite, types, passes and filter, or those of `problems`.
std::vector<Cell> wanted_cells(const BenchOptions& options);

// 0: all cells were measured and correct. 1: a result was wrong or a cell failed. 2: bad options
// (message on stderr).
int run_bench_command(const BenchOptions& options);

}  // namespace attn::bench
