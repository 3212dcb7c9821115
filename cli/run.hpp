// attn run: reads tensors from files, computes attention, writes tensors, and reports on stdout.
#pragma once

#include <attn/attn.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/compare.hpp"
#include "cli/inputs.hpp"
#include "cli/outputs.hpp"
#include "cli/problem_flags.hpp"
#include "cli/progress.hpp"

namespace attn::cli {

// Numbers of Arguments that were given as flags.
struct RunNumbers {
  std::optional<double> scale;
  std::optional<double> softcap;
  std::optional<double> dropout;
  std::optional<std::uint64_t> seed;
  std::optional<std::uint64_t> offset;
  std::optional<std::int64_t> diag;
  std::vector<std::int64_t> origin;  // batch, head, q, kv and optionally heads_q
  std::optional<double> rope_base;
  std::optional<std::int64_t> rope_pos_offset;
};

struct RunOptions {
  InputOptions input;
  ProblemFlags problem;
  RunNumbers numbers;
  bool backward = false;
  bool decode = false;
  bool saved_forward = false;
  std::string output;
  bool check = false;
  std::optional<double> tolerance;
  std::string backend;
  std::string device;
  std::int32_t threads = 0;
  std::int64_t repeat = 1;
  bool json = false;
  ShowProgress progress = ShowProgress::on_terminal;
};

// One pass that ran.
struct PassReport {
  Pass pass = Pass::forward;
  PlanSummary plan;
  std::vector<double> seconds;  // of each repetition
  double flop = 0.0;
  double kv_bytes = 0.0;
};

struct RunReport {
  Problem problem;
  std::int32_t threads = 0;
  std::string device;  // "cuda:0", "webgpu"; empty on the host
  std::vector<PassReport> passes;
  std::optional<std::int64_t> nonfinite;  // number of replaced elements
  std::vector<TensorComparison> checks;
};

int run(const RunOptions& options);

// The passes that run, in order.
std::vector<Pass> passes_of(const RunOptions& options);

// These refuse what would otherwise be ignored or fail after the work is done. They throw BadInput.
// Flags that need another flag: tensors that no pass reads, --dbias, --name, ...
void check_flags(const RunOptions& options);
// Starts of gradients (dq0, ...) that are not written.
void check_starts(const RunOptions& options, const Problem& problem);
// --output: a folder, or a name that ends in .safetensors, with types that it can have.
void check_output(const RunOptions& options, const Problem& problem);

// --check: compares `written`, the outputs of the run, with the float64 reference on the same
// inputs, then with tensors of the file that have the names of outputs.
std::vector<TensorComparison> verify(const RunOptions& options, const Problem& problem,
                                     Inputs& inputs, const Arguments& arguments,
                                     const Outputs& written);

}  // namespace attn::cli
