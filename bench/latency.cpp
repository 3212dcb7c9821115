// Measures start-up, first calls and host time per call; see latency.hpp.
#include "bench/latency.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <thread>
#include <vector>

#include "bench/cells.hpp"
#include "bench/command.hpp"
#include "bench/inputs.hpp"
#include "bench/machine.hpp"
#include "bench/own_folder.hpp"
#include "bench/row.hpp"
#include "bench/timer.hpp"
#include "harness/mirror.hpp"
#include "harness/place.hpp"
#include "platform/platform.hpp"

namespace attn::bench {
namespace {

using nlohmann::json;

template <class... Values>
std::string print(const char* format, Values... values) {
  std::array<char, 200> text{};
  std::snprintf(text.data(), text.size(), format, values...);  // NOLINT
  return text.data();
}

struct Named {
  const char* name;
  const char* problem;
  bool is_empty = false;  // batch 0
};
// Each needs kernels that the previous ones do not.
constexpr Named kFirstCalls[] = {
    {"d64-causal-bf16",
     "dtype=bf16 heads_q=4 heads_kv=4 len_q=256 len_kv=256 dim_qk=64 dim_vo=64 causal"},
    {"d128-causal-bf16",
     "dtype=bf16 heads_q=4 heads_kv=4 len_q=256 len_kv=256 dim_qk=128 dim_vo=128 causal"},
    {"d128-full-f16", "dtype=f16 heads_q=4 heads_kv=4 len_q=256 len_kv=256 dim_qk=128 dim_vo=128"},
    {"d64-causal-softcap-bf16",
     "dtype=bf16 heads_q=4 heads_kv=4 len_q=256 len_kv=256 dim_qk=64 dim_vo=64 causal softcap"},
    {"d256-causal-bf16",
     "dtype=bf16 heads_q=4 heads_kv=4 len_q=256 len_kv=256 dim_qk=256 dim_vo=256 causal"},
    {"d512-causal-bf16",
     "dtype=bf16 heads_q=4 heads_kv=4 len_q=256 len_kv=256 dim_qk=512 dim_vo=512 causal"},
};
// The problem of peers/torch_cuda.py's suite latency, and the same with batch 0.
constexpr Named kSmall = {
    "b1-h1-n64-d64-causal-bf16",
    "dtype=bf16 heads_q=1 heads_kv=1 len_q=64 len_kv=64 dim_qk=64 dim_vo=64 causal"};
constexpr Named kEmpty = {
    "empty", "dtype=bf16 heads_q=1 heads_kv=1 len_q=64 len_kv=64 dim_qk=64 dim_vo=64 causal", true};

// A temporary folder, removed on destruction.
class Folder {
 public:
  Folder()
      : path_(std::filesystem::temp_directory_path() /
              ("attn-latency-" + std::to_string(platform::process_id()))) {
    std::filesystem::create_directories(path_);
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  [[nodiscard]] std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

// Statistics of repeated measurements.
struct Spread {
  double least = 0.0;
  double median = 0.0;
};

// Other processes may use the processor or the core's second hardware thread for seconds at a time.
// The minimum is the cost of the work itself, so measurements are spread over four times `seconds`
// (see BenchOptions) to include a quiet moment.
template <class Measure>
Spread spread_of(double seconds, Measure measure) {
  const int spells = std::max(1, static_cast<int>(40 * seconds));
  constexpr int kInSpell = 10;
  std::vector<double> found;
  for (int spell = 0; spell < spells; ++spell) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    for (int n = 0; n < kInSpell; ++n) found.push_back(measure());
  }
  return {*std::ranges::min_element(found), median(found)};
}

struct Setting {
  const BenchOptions& options;
  harness::DeviceQueue& queue;
  std::string cache_dir;
};

Cell cell_of(const Named& named, Pass pass) {
  Cell cell = custom_cell(named.problem, pass);
  if (named.is_empty) cell.problem.batch = 0;
  return cell;
}

// A context with one problem's memory on the device. The plan exists; kernels are not loaded.
class Caller {
 public:
  Caller(const Setting& setting, const Named& named, Pass pass)
      : queue_(setting.queue),
        seconds_(setting.options.seconds),
        context_(context_options(setting)),
        cell_(cell_of(named, pass)),
        name_(named.name),
        inputs_(cell_),
        mirror_(queue_) {
    plan_ = plan(context_, pass, cell_.problem, Device::cuda);
    mirror_.add_tensors(pass, cell_.problem, inputs_.arguments);
    arguments_ = mirror_.arguments(pass, cell_.problem, inputs_.arguments);
    if (plan_.workspace_bytes > 0) arguments_.workspace = queue_.take(plan_.workspace_bytes);
    arguments_.workspace_size = plan_.workspace_bytes;
    queue_.synchronize();
  }
  ~Caller() { queue_.give_back(arguments_.workspace); }
  Caller(const Caller&) = delete;
  Caller& operator=(const Caller&) = delete;

  // The row's fields.
  [[nodiscard]] json about() const {
    const Problem& p = cell_.problem;
    return {{"pass", pass_name(cell_.pass)},
            {"dtype", to_string(p.dtype)},
            {"batch", p.batch},
            {"heads_q", p.heads_q},
            {"heads_kv", p.heads_kv},
            {"len_q", p.len_q},
            {"len_kv", p.len_kv},
            {"dim_qk", p.dim_qk},
            {"dim_vo", p.dim_vo},
            {"causal", p.causal},
            {"options", p.softcap ? json{{"softcap", arguments_.softcap}} : json::object()},
            {"kernel", plan_.kernel}};
  }
  // Number of pointer queries that the call sends to the driver, and seconds per query.
  [[nodiscard]] int pointers() const { return mirror_.count() + (arguments_.workspace ? 1 : 0); }
  Spread of_pointer() {
    return spread_of(seconds_, [this] { return queue_.pointer_seconds(arguments_.q.address()); });
  }
  // "/d64-causal-bf16/fwd"
  [[nodiscard]] std::string name() const {
    return std::string("/") + name_ + "/" + pass_name(cell_.pass);
  }

  // Seconds until the result of one call is available.
  double to_result() {
    return seconds_of([this] {
      call();
      queue_.synchronize();
    });
  }

  // Host seconds per call, in bursts short enough for the stream's queue.
  Spread of_host() {
    constexpr int kBurst = 200;
    return spread_of(seconds_, [this] {
      const double seconds = seconds_of([this] {
        for (int n = 0; n < kBurst; ++n) call();
      });
      queue_.synchronize();
      return seconds / kBurst;
    });
  }

 private:
  static ContextOptions context_options(const Setting& setting) {
    ContextOptions out;
    out.backend = setting.options.backend;
    out.cache_dir = setting.cache_dir;
    return out;
  }

  void call() {
    if (cell_.pass == Pass::backward) return backward(context_, cell_.problem, arguments_);
    forward(context_, cell_.problem, arguments_);
  }

  harness::DeviceQueue& queue_;
  double seconds_;
  Context context_;
  Cell cell_;
  const char* name_;
  Inputs inputs_;
  harness::Mirror mirror_;
  PlanSummary plan_;
  Arguments arguments_;
};

// Rounds to the precision of rows, in microseconds or milliseconds.
double rounded_time(double seconds, double unit) {
  return std::round(seconds / unit * 1e3) / 1e3;
}

// Prints and stores the rows.
class Report {
 public:
  Report(const BenchOptions& options, const Opened& opened)
      : options_(options),
        machine_(this_machine(opened)),
        file_(row_path(options.out, machine_, "cuda")) {
    if (!options.json) std::printf("%s, %s\n", machine_.device.c_str(), machine_.driver.c_str());
  }

  // Stores a row. Prints `line`, or the row with --json.
  void add(const std::string& cell, const std::string& line, const json& more) {
    json row = {{"backend", "cuda"},         {"device", machine_.device},
                {"driver", machine_.driver}, {"threads", 1},
                {"commit", machine_.commit}, {"date", machine_.date},
                {"cell", "latency/" + cell}, {"pass", ""}};
    row.update(more);
    const std::string text = row.dump();
    file_.append(text);
    std::printf("%s\n", options_.json ? text.c_str() : (line + "  " + cell).c_str());
    std::fflush(stdout);
  }

 private:
  const BenchOptions& options_;
  Machine machine_;
  RowFile file_;
};

void start_up(const harness::StartUp& start, Report& report) {
  const json row = {{"driver_ms", rounded_time(start.driver, 1e-3)},
                    {"context_ms", rounded_time(start.context, 1e-3)},
                    {"compiler_ms", rounded_time(start.compiler, 1e-3)},
                    {"compiler", "NVRTC " + start.compiler_version}};
  report.add("start",
             print("driver %.1f ms, context %.1f ms, compiler %.1f ms", start.driver * 1e3,
                   start.context * 1e3, start.compiler * 1e3),
             row);
}

// Several tries, because other processes use the processor too: the median and the maximum of first
// calls, which compile, and the median of calls that find the binary on disk. Loaded kernels are
// cached per folder: a new folder forces a first call, a copy of it forces a load from disk.
void first_calls(const Setting& setting, const Named& problem, Pass pass, Report& report) {
  const int tries = setting.options.seconds > 0 ? 3 : 1;
  json row;
  std::string name;
  std::vector<double> compiled;
  std::vector<double> found;
  for (int n = 0; n < tries; ++n) {
    Setting cold = setting;
    cold.cache_dir += std::string("/") + problem.name + "-" + pass_name(pass) + std::to_string(n);
    Caller first(cold, problem, pass);
    compiled.push_back(first.to_result());
    Setting cached = setting;
    cached.cache_dir = cold.cache_dir + "-copy";
    std::filesystem::copy(cold.cache_dir, cached.cache_dir,
                          std::filesystem::copy_options::recursive);
    Caller caller(cached, problem, pass);
    found.push_back(caller.to_result());
    row = caller.about();
    name = caller.name();
  }
  const double slowest = *std::max_element(compiled.begin(), compiled.end());
  row["first_call_ms"] = rounded_time(median(compiled), 1e-3);
  row["first_call_slowest_ms"] = rounded_time(slowest, 1e-3);
  row["cached_ms"] = rounded_time(median(found), 1e-3);
  report.add("first_call" + name,
             print("first call %.1f ms (slowest %.1f), cached %.2f ms", median(compiled) * 1e3,
                   slowest * 1e3, median(found) * 1e3),
             row);
}

// Host microseconds per call of the same problem, by pass and peer name.
using PeerTimes = std::map<std::string, std::map<std::string, double>>;

// Runs peers/torch_cuda.py; its output goes to stderr here.
PeerTimes peer_times(const BenchOptions& options, const std::string& folder) {
  PeerTimes times;
  if (options.peer_python.empty()) return times;
  const std::string script = own_folder() + "/peers/torch_cuda.py";
  const std::string rows = folder + "/peers.jsonl";
  const std::string command =
      "'" + options.peer_python + "' '" + script + "' --suite latency --out '" + rows + "' >&2";
  if (std::system(command.c_str()) != 0) {
    throw std::runtime_error("failed: " + command);
  }
  std::ifstream file(rows);
  for (std::string line; std::getline(file, line);) {
    const json row = json::parse(line, nullptr, false);
    if (!row.is_object()) continue;
    auto& of_pass = times[row.value("pass", "")];
    of_pass["libattn_python"] = row.value("host_us", 0.0);
    const json others = row.value("peers_host_us", json::object());
    for (const auto& [name, us] : others.items()) of_pass[name] = us.get<double>();
  }
  return times;
}

// The host time of a call and its parts. library: its own work, measured by a call with batch 0.
// pointers: the driver's pointer queries. launches: the driver's launch, and finding and updating
// the graph that launches the kernels.
void host_calls(const Setting& setting, const PeerTimes& peers, Pass pass, Report& report) {
  Caller empty(setting, kEmpty, pass);
  empty.to_result();
  Caller caller(setting, kSmall, pass);
  caller.to_result();
  const Spread all = caller.of_host();
  const double own = empty.of_host().least;
  const double pointers = caller.pointers() * caller.of_pointer().least;
  const double launches = all.least - own - pointers;
  json row = caller.about();
  row["host_us"] = rounded_time(all.least, 1e-6);
  row["host_median_us"] = rounded_time(all.median, 1e-6);
  row["host_parts_us"] = {{"library", rounded_time(own, 1e-6)},
                          {"pointers", rounded_time(pointers, 1e-6)},
                          {"launches", rounded_time(launches, 1e-6)}};
  std::string line = print(
      "host %.2f us (median %.2f): library %.2f, %d pointers %.2f, launches %.2f", all.least * 1e6,
      all.median * 1e6, own * 1e6, caller.pointers(), pointers * 1e6, launches * 1e6);
  const auto found = peers.find(pass_name(pass));
  if (found != peers.end()) {
    row["peers_host_us"] = found->second;
    for (const auto& [name, us] : found->second) line += print("; %s %.2f", name.c_str(), us);
  }
  report.add("host_call" + caller.name(), line, row);
}

}  // namespace

int run_latency(const BenchOptions& options) {
  const harness::Place place = harness::place_of(options.device, options.backend);
  if (place.device != Device::cuda) {
    throw std::invalid_argument("--latency is about CUDA: give --device cuda");
  }
  const harness::StartUp start = harness::time_start_up(place.ordinal);  // must come first
  const Opened opened(place);
  harness::DeviceQueue& queue = *opened.cuda;
  const auto current = queue.current();
  Report report(options, opened);
  start_up(start, report);
  const Folder folder;
  const Setting setting{options, queue, folder.path()};
  int failed = 0;
  const auto attempt = [&](const char* what, auto&& measure) {
    try {
      measure();
    } catch (const WriteError&) {
      throw;
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s failed: %s\n", what, error.what());
      ++failed;
    }
  };
  PeerTimes peers;
  attempt("peers", [&] { peers = peer_times(options, folder.path()); });
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    for (const Named& problem : kFirstCalls) {
      attempt(problem.name, [&] { first_calls(setting, problem, pass, report); });
    }
    attempt(kSmall.name, [&] { host_calls(setting, peers, pass, report); });
  }
  return failed == 0 ? 0 : 1;
}

}  // namespace attn::bench
