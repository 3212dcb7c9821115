// `attn bench`: verifies each cell, times it alternately with its peer, and reports rows.
#include "bench/command.hpp"

#include <algorithm>
#include <attn/attn.hpp>
#include <cstdio>
#include <exception>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "bench/cell_run.hpp"
#include "bench/cells.hpp"
#include "bench/inputs.hpp"
#include "bench/latency.hpp"
#include "bench/machine.hpp"
#include "bench/peer.hpp"
#include "bench/rates.hpp"
#include "bench/row.hpp"
#include "bench/timer.hpp"
#include "bench/verify.hpp"
#include "bench/work.hpp"
#include "core/validate.hpp"
#include "harness/naive.hpp"
#include "harness/place.hpp"

namespace attn::bench {
namespace {

constexpr int kRounds = 2;      // A B A B
constexpr int kLeastCalls = 2;  // per round, by the peer

class Run {
 public:
  explicit Run(const BenchOptions& options)
      : options_(options),
        place_(harness::place_of(options.device, options.backend)),
        context_(context_options(options, place_)),
        opened_(place_) {
    if (!options.peer_python.empty()) {
      if (place_.device != Device::host) {
        throw std::invalid_argument(
            "--peer times PyTorch on the CPU; peers on a GPU: bench/peers/torch_cuda.py");
      }
      peer_ = std::make_unique<TorchPeer>(options.peer_python, context_.threads());
    }
  }

  [[nodiscard]] std::string peer_version() const { return peer_ ? peer_->version() : ""; }

  [[nodiscard]] const Opened& opened() const { return opened_; }

  // Empty on a device other than the host.
  [[nodiscard]] Rates rates() const {
    if (place_.device != Device::host) return {};
    return measure_rates(context_.threads(), options_.seconds, peer_.get());
  }

  [[nodiscard]] std::int32_t threads() const {
    return place_.device != Device::host ? 1 : context_.threads();
  }

  // The name of the backend, for the path of `--out auto`.
  [[nodiscard]] std::string backend() const {
    const std::string asked = harness::backend_for(place_, options_.backend);
    return asked.empty() ? "cpu" : asked;
  }

  Measurement measure(const Cell& cell) {
    const auto current = opened_.cuda ? opened_.cuda->current() : nullptr;
    const Device device = opened_.device;
    Measurement out;
    out.plan = plan(context_, cell.pass, cell.problem, device);
    out.threads = threads();
    const Inputs inputs(cell);
    out.work = work_of(cell, inputs);
    const std::unique_ptr<CellRun> own = ready(context_, cell, inputs, opened_);
    own->call_once();
    out.extra_bytes = own->extra_bytes();
    if (options_.verify) {
      out.error = verify(cell, inputs, harness::operand_type(cell.problem, device, out.plan));
      out.verified = true;
      if (!out.error.problem.empty()) return out;
    }
    std::unique_ptr<Inputs> plain;  // the same work without the option
    std::unique_ptr<CellRun> without;
    if (cell.against) {
      plain = std::make_unique<Inputs>(*cell.against);
      without = ready(context_, *cell.against, *plain, opened_);
      without->call_once();
    }
    const bool with_peer = peer_ && peer_->load(cell);
    std::vector<double> times, times_without, theirs;
    const double budget = options_.seconds / kRounds;
    for (int round = 0; round < kRounds; ++round) {
      own->sample(budget, times);
      if (without) without->sample(budget, times_without);
      if (!with_peer) continue;
      const std::vector<double> part = peer_->sample(budget, kLeastCalls);
      theirs.insert(theirs.end(), part.begin(), part.end());
    }
    out.seconds = median(times) * static_cast<double>(cell.layers);
    out.work.flop *= static_cast<double>(cell.layers);
    out.work.kv_bytes *= static_cast<double>(cell.layers);
    if (without) {
      out.gflops_against = work_of(*cell.against, *plain).flop / median(times_without) * 1e-9;
    }
    if (!theirs.empty()) out.peers["torch"] = out.work.flop / median(theirs) * 1e-9;
    return out;
  }

 private:
  static ContextOptions context_options(const BenchOptions& options, const harness::Place& place) {
    ContextOptions out;
    out.backend = harness::backend_for(place, options.backend);
    out.threads = options.threads;
    return out;
  }

  const BenchOptions& options_;
  harness::Place place_;
  Context context_;
  Opened opened_;
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

int run_cells(const BenchOptions& options, const std::vector<Cell>& cells) {
  Run run(options);
  const Machine machine = this_machine(run.opened());
  const std::string path = row_path(options.out, machine, run.backend());
  RowFile file(path);
  const Rates rates = run.rates();
  if (!options.json) {
    std::printf("%s%s%s\n", machine.device.c_str(),
                run.peer_version().empty() ? "" : ", peer PyTorch ", run.peer_version().c_str());
    const std::string reached = rates_line(rates, run.threads());
    if (!reached.empty()) std::printf("%s\n", reached.c_str());
    std::printf("%s\n", table_head().c_str());
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
    const std::string row = row_of(machine, rates, cell, measurement).dump();
    file.append(row);
    std::printf("%s\n", options.json ? row.c_str() : table_line(rates, cell, measurement).c_str());
    std::fflush(stdout);
  }
  if (!path.empty()) std::fprintf(stderr, "rows: %s\n", path.c_str());
  std::fprintf(stderr, "%zu cells, %d failed\n", cells.size(), failed);
  return failed == 0 ? 0 : 1;
}

}  // namespace

std::vector<Cell> wanted_cells(const BenchOptions& options) {
  if (options.problems.empty()) {
    const Device device = harness::place_of(options.device, options.backend).device;
    std::vector<Cell> all = cells(options.suite, options.dtypes, options.passes, device);
    std::erase_if(all, [&](const Cell& cell) { return !matches(cell.name, options.filter); });
    if (options.divide > 1) {
      for (Cell& cell : all) cell = divided(std::move(cell), options.divide);
    }
    return all;
  }
  if (!options.dtypes.empty() || !options.filter.empty() || options.divide > 1) {
    throw std::invalid_argument(
        "--dtype, --filter and --divide select cells of a suite; accepted with --problem: "
        "types and sizes in its text, such as 'dtype=bf16 len_q=64 len_kv=64'");
  }
  std::vector<Cell> out;
  for (const std::string& text : options.problems) {
    if (options.verify && parse_problem(text).accumulate) {
      throw std::invalid_argument(
          "--problem: results with accumulate can't be verified: found accumulate; accepted a "
          "problem without it, or bench --no-verify");
    }
    for (const Pass pass : {Pass::forward, Pass::backward, Pass::decode}) {
      const bool asked = std::find(options.passes.begin(), options.passes.end(), pass_name(pass)) !=
                         options.passes.end();
      if (!asked && (!options.passes.empty() || pass == Pass::decode)) continue;
      if (!asked && pass == Pass::backward) {
        const core::Status status = core::validate_problem(pass, parse_problem(text));
        if (!status.ok()) {
          std::fprintf(stderr, "left out: %s\n", status.message.c_str());
          continue;
        }
      }
      out.push_back(custom_cell(text, pass));
    }
  }
  return out;
}

int run_bench_command(const BenchOptions& options) {
  try {
    if (options.latency) return run_latency(options);
    const std::vector<Cell> cells = wanted_cells(options);
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
