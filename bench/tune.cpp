// Measures tiles; see tune.hpp.
#include "bench/tune.hpp"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <random>
#include <sstream>
#include <stdexcept>

#include "bench/cell_run.hpp"
#include "bench/search.hpp"
#include "bench/timer.hpp"
#include "bench/verify.hpp"
#include "harness/naive.hpp"
#include "harness/place.hpp"
#include "platform/platform.hpp"

namespace attn::bench {
namespace {

constexpr double kLongerRound = 5.0;  // multiple of the first round's seconds

// Temporary folder for the candidates' binaries; most are never used again.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    namespace fs = std::filesystem;
    std::random_device random;
    const std::string name = "attn-tune-" + std::to_string(random()) + std::to_string(random());
    path_ = (fs::temp_directory_path() / name).string();
    if (!fs::create_directory(path_)) throw std::runtime_error("can't make " + path_);
    fs::permissions(path_, fs::perms::owner_all);
  }
  ~TemporaryFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

ContextOptions context_options(const TuneOptions& tune, const std::string& cache_dir) {
  ContextOptions options;
  options.cache_dir = cache_dir;
  options.threads = tune.cells.threads;
  return options;
}

// A cell with its tensors and the choice being measured.
struct Workload {
  explicit Workload(const Cell& c) : cell(c), inputs(c) {}
  const Cell& cell;
  Inputs inputs;
};

class Tuner {
 public:
  Tuner(const TuneOptions& options, const harness::Place& place)
      : options_(options),
        opened_(place),
        device_(place.device),
        seconds_(options.seconds > 0.0 ? options.seconds
                 : on_host()           ? 0.1
                                       : 0.02),
        current_(on_host() ? nullptr : opened_.cuda->current()),
        context_(context_options(options, folder_.path())) {}

  int run(const std::vector<Cell>& cells) {
    const std::string name = on_host() ? platform::processor_name() + ", " +
                                             std::to_string(context_.threads()) + " threads"
                                       : opened_.cuda->device_name();
    std::printf("%s: %zu cells\n", name.c_str(), cells.size());
    for (const auto& [key, group] : by_key(cells)) tune(key, group);
    if (num_kernels_ == 0) throw std::invalid_argument("no cell has a kernel with tiles to choose");
    if (options_.keep) std::printf("kept in %s\n", tune_store(context_, device_).c_str());
    return num_wrong_ > 0 ? 1 : 0;
  }

 private:
  using Group = std::vector<const Cell*>;

  std::map<std::string, Group> by_key(const std::vector<Cell>& cells) {
    std::map<std::string, Group> groups;
    for (const Cell& cell : cells) {
      if (!supports(context_, cell.pass, cell.problem, device_).supported) continue;
      const std::string key = key_of(cell);
      if (!key.empty()) groups[key].push_back(&cell);
    }
    const auto most = static_cast<std::size_t>(std::max<std::int64_t>(1, options_.most_cells));
    for (auto& [key, group] : groups) {
      Group some;
      const std::size_t count = std::min(most, group.size());
      for (std::size_t n = 0; n < count; ++n) some.push_back(group[n * group.size() / count]);
      group = std::move(some);
    }
    return groups;
  }

  // Empty if the plan of the cell has no tiles to choose.
  std::string key_of(const Cell& cell) {
    try {
      return tune_key(context_, cell.pass, cell.problem, device_);
    } catch (const attn::Error& error) {
      if (error.code() != ErrorCode::unsupported) throw;
      return {};
    }
  }

  void tune(const std::string& key, const Group& group) {
    ++num_kernels_;
    const Cell& first = *group[0];
    std::vector<std::string> choices{""};  // the default
    std::size_t flawed = 0;
    std::string flaw;
    for (const TuneCandidate& one : tune_candidates(context_, first.pass, first.problem, device_)) {
      if (one.flaw.empty()) {
        choices.push_back(one.tiles);
      } else if (flawed++ == 0) {
        flaw = ", the first: " + one.flaw;
      }
    }
    tune_use(context_, first.pass, first.problem, "", device_);
    const std::string table = plan(context_, first.pass, first.problem, device_).config;
    std::printf("\n%s\n  %zu candidates", key.c_str(), choices.size() - 1);
    if (flawed > 0) std::printf(", %zu more spill much or don't fit%s", flawed, flaw.c_str());
    std::printf("\n  default: %s\n", table.c_str());
    std::fflush(stdout);
    std::unique_ptr<Workload> workload;
    const auto measure = [&](std::size_t choice, std::size_t n, int round) {
      if (workload == nullptr || &workload->cell != group[n]) {
        workload = std::make_unique<Workload>(*group[n]);
      }
      return trial(*workload, choices[choice], round);
    };
    const Found found =
        search(choices.size(), group.size(), measure, on_host() ? kLeastGainOnHost : kLeastGain);
    report(group, choices, found);
    tune_use(context_, first.pass, first.problem, choices[found.best], device_);
    if (!options_.print_table || choices[found.best].empty()) return;
    if (key.starts_with("sm90")) {
      std::printf("  Tiles{%s};  // %.3fx: %s\n", fields_of(choices[found.best]).c_str(),
                  found.gain, key.c_str());
      return;
    }
    std::printf("  Rule{.largest_dim = %lld, .tiles = {%s}, .reason = \"%.3fx\"},  // %s\n",
                static_cast<long long>(std::max(first.problem.dim_qk, first.problem.dim_vo)),
                fields_of(choices[found.best]).c_str(), found.gain, key.c_str());
  }

  Trial trial(const Workload& workload, const std::string& tiles, int round) {
    const Cell& cell = workload.cell;
    Trial trial;
    try {
      tune_use(context_, cell.pass, cell.problem, tiles, device_);
      const std::unique_ptr<CellRun> run = ready(context_, cell, workload.inputs, opened_);
      run->call_once();
      const DType operands = harness::operand_type(
          cell.problem, device_, plan(context_, cell.pass, cell.problem, device_));
      trial.problem = verify(cell, workload.inputs, operands).problem;
      if (!trial.problem.empty()) return trial;
      std::vector<double> seconds;
      run->sample(seconds_ * (round > 0 ? kLongerRound : 1.0), seconds);
      // Other programs on the processor can only make a call slower.
      trial.seconds =
          on_host() ? *std::min_element(seconds.begin(), seconds.end()) : median(seconds);
    } catch (const attn::Error& error) {
      trial.problem = error.what();
    }
    return trial;
  }

  void report(const Group& group, const std::vector<std::string>& choices, const Found& found) {
    for (std::size_t n = 0; n < choices.size(); ++n) {
      const Choice& one = found.choices[n];
      const char* const name = n == 0 ? "the default" : choices[n].c_str();
      if (!one.problem.empty()) {
        ++num_wrong_;
        std::printf("  WRONG %s: %s\n", name, one.problem.c_str());
        continue;
      }
      std::printf("  %s %-76s", n == found.best ? "*" : " ", name);
      for (const double seconds : one.seconds) {
        if (seconds > 0.0) std::printf(" %9.1f", seconds * 1e6);
      }
      std::printf("\n");
    }
    std::printf("  us of");
    for (const Cell* cell : group) std::printf(" %s", cell->name.c_str());
    const std::string best = found.best == 0 ? "the default" : choices[found.best];
    if (found.gain > 0.0) {
      std::printf("\n  best: %s, %.3f of the default's speed\n", best.c_str(), found.gain);
    } else {
      std::printf("\n  the default tiles give wrong results; taken: %s\n", best.c_str());
    }
    std::fflush(stdout);
  }

  // ".tile_q = 128, .tile_kv = 64" for "tile_q=128 tile_kv=64 ...".
  static std::string fields_of(const std::string& tiles) {
    std::istringstream words(tiles);
    std::string fields;
    for (std::string word; words >> word;) {
      const std::size_t equals = word.find('=');
      if (word.substr(equals + 1) == "0") continue;  // the default
      fields.append(fields.empty() ? "." : ", .").append(word, 0, equals);
      fields.append(" = ").append(word, equals + 1);
    }
    return fields;
  }

  [[nodiscard]] bool on_host() const { return device_ == Device::host; }

  const TuneOptions& options_;
  TemporaryFolder folder_;
  Opened opened_;
  Device device_;
  double seconds_;
  std::shared_ptr<const void> current_;
  Context context_;
  std::size_t num_kernels_ = 0;
  std::size_t num_wrong_ = 0;
};

}  // namespace

int run_tune_command(const TuneOptions& options) {
  const harness::Place place = harness::parse_place(options.cells.device);
  if (place.device == Device::webgpu) {
    throw std::invalid_argument("--device is host, cuda or cuda:N, not '" + options.cells.device +
                                "'");
  }
  if (place.device == Device::host && options.print_table) {
    throw std::invalid_argument("--print-table is for --device cuda: the CPU has no table");
  }
  const std::vector<Cell> cells = wanted_cells(options.cells);
  if (cells.empty()) throw std::invalid_argument("no cell matches");
  Tuner tuner(options, place);
  return tuner.run(cells);
}

}  // namespace attn::bench
