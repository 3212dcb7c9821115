// `attn bench`: verifies each cell, times it in turns with its peer, and reports rows.
#include "bench/command.hpp"

#include <algorithm>
#include <attn/attn.hpp>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "bench/cells.hpp"
#include "bench/inputs.hpp"
#include "bench/machine.hpp"
#include "bench/peer.hpp"
#include "bench/row.hpp"
#include "bench/timer.hpp"
#include "bench/verify.hpp"
#include "bench/work.hpp"

namespace attn::bench {
namespace {

constexpr int kRounds = 2;      // A B A B
constexpr int kLeastCalls = 2;  // of each round

class Run {
 public:
  explicit Run(const BenchOptions& options)
      : options_(options), context_(context_options(options)) {
    if (!options.peer_python.empty()) {
      peer_ = std::make_unique<TorchPeer>(options.peer_python, context_.threads());
    }
  }

  [[nodiscard]] std::string peer_version() const { return peer_ ? peer_->version() : ""; }

  Measurement measure(const Cell& cell) {
    Inputs inputs(cell);
    Measurement out;
    out.threads = context_.threads();
    out.plan = plan(context_, cell.pass, cell.problem);
    out.work = work_of(cell, inputs);
    if (cell.pass == Pass::backward) run(cell, Pass::forward, inputs);
    const auto call = [&] { run(cell, cell.pass, inputs); };
    call();
    if (options_.verify) {
      out.error = verify(cell, inputs);
      out.verified = true;
      if (!out.error.problem.empty()) return out;
    }
    std::unique_ptr<Inputs> plain;  // the same work without the option
    if (cell.against) {
      plain = std::make_unique<Inputs>(*cell.against);
      if (cell.pass == Pass::backward) run(*cell.against, Pass::forward, *plain);
      run(*cell.against, cell.pass, *plain);
    }
    const bool with_peer = peer_ && peer_->load(cell);
    std::vector<double> own, without, theirs;
    const double budget = options_.seconds / kRounds;
    for (int round = 0; round < kRounds; ++round) {
      sample(call, budget, kLeastCalls, own);
      if (plain) {
        sample([&] { run(*cell.against, cell.pass, *plain); }, budget, kLeastCalls, without);
      }
      if (!with_peer) continue;
      const std::vector<double> part = peer_->sample(budget, kLeastCalls);
      theirs.insert(theirs.end(), part.begin(), part.end());
    }
    out.seconds = median(own);
    if (plain) {
      out.gflops_against = work_of(*cell.against, *plain).flop / median(without) * 1e-9;
    }
    if (!theirs.empty()) out.peers["torch"] = out.work.flop / median(theirs) * 1e-9;
    return out;
  }

 private:
  static ContextOptions context_options(const BenchOptions& options) {
    ContextOptions out;
    out.backend = options.backend;
    out.threads = options.threads;
    return out;
  }

  void run(const Cell& cell, Pass pass, const Inputs& inputs) {
    Problem problem = cell.problem;
    if (pass != cell.pass) problem.lse = true;
    switch (pass) {
      case Pass::forward: forward(context_, problem, inputs.arguments); break;
      case Pass::backward: backward(context_, problem, inputs.arguments); break;
      case Pass::decode: decode(context_, problem, inputs.arguments); break;
    }
  }

  const BenchOptions& options_;
  Context context_;
  std::unique_ptr<TorchPeer> peer_;
};

bool matches(const std::string& name, const std::string& filter) {
  if (filter.empty()) return true;
  for (std::size_t begin = 0; begin <= filter.size();) {
    const std::size_t end = std::min(filter.find(',', begin), filter.size());
    if (end > begin && name.find(filter.substr(begin, end - begin)) != std::string::npos) {
      return true;
    }
    begin = end + 1;
  }
  return false;
}

std::vector<Cell> wanted(const BenchOptions& options) {
  if (options.problems.empty()) {
    std::vector<Cell> all = cells(options.suite, options.dtypes, options.passes);
    std::erase_if(all, [&](const Cell& cell) { return !matches(cell.name, options.filter); });
    return all;
  }
  std::vector<Cell> out;
  for (const std::string& text : options.problems) {
    for (const Pass pass : {Pass::forward, Pass::backward, Pass::decode}) {
      const bool asked = std::find(options.passes.begin(), options.passes.end(), pass_name(pass)) !=
                         options.passes.end();
      if (asked || (options.passes.empty() && pass != Pass::decode)) {
        out.push_back(custom_cell(text, pass));
      }
    }
  }
  return out;
}

std::string output_path(const BenchOptions& options, const Machine& machine) {
  if (options.out != "auto") return options.out;
  return "bench/results/" + machine.folder + "/" +
         (options.backend.empty() ? "cpu" : options.backend) + ".jsonl";
}

int run_cells(const BenchOptions& options, const std::vector<Cell>& cells) {
  const Machine machine = this_machine();
  Run run(options);
  std::ofstream file;
  const std::string path = output_path(options, machine);
  if (!path.empty()) {
    const std::filesystem::path folder = std::filesystem::path(path).parent_path();
    if (!folder.empty()) std::filesystem::create_directories(folder);
    file.open(path, std::ios::app);
    if (!file) throw std::runtime_error("can't write " + path);
  }
  if (!options.json) {
    std::printf("%s%s%s\n%s\n", machine.device.c_str(),
                run.peer_version().empty() ? "" : ", peer PyTorch ", run.peer_version().c_str(),
                table_head().c_str());
  }
  int failed = 0;
  std::size_t number = 0;
  for (const Cell& cell : cells) {
    std::fprintf(stderr, "[%zu/%zu] %s\n", ++number, cells.size(), cell.name.c_str());
    Measurement measurement;
    try {
      measurement = run.measure(cell);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "  failed: %s\n", error.what());
      ++failed;
      continue;
    }
    if (!measurement.error.problem.empty()) {
      std::fprintf(stderr, "  wrong, not timed: %s\n", measurement.error.problem.c_str());
      ++failed;
      continue;
    }
    const std::string row = row_of(machine, cell, measurement).dump();
    if (file.is_open()) file << row << std::endl;
    std::printf("%s\n", options.json ? row.c_str() : table_line(cell, measurement).c_str());
    std::fflush(stdout);
  }
  if (!path.empty()) std::fprintf(stderr, "rows: %s\n", path.c_str());
  std::fprintf(stderr, "%zu cells, %d failed\n", cells.size(), failed);
  return failed == 0 ? 0 : 1;
}

}  // namespace

int run_bench_command(const BenchOptions& options) {
  try {
    const std::vector<Cell> cells = wanted(options);
    if (cells.empty()) throw std::invalid_argument("no cell matches '" + options.filter + "'");
    if (options.list) {
      for (const Cell& cell : cells) std::printf("%s\n", cell.name.c_str());
      return 0;
    }
    return run_cells(options, cells);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "attn bench: %s\n", error.what());
    return 2;
  }
}

}  // namespace attn::bench
