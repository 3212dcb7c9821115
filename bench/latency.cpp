// Times that are not the kernels'; see latency.hpp.
#include "bench/latency.hpp"

#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <vector>

#include "bench/cells.hpp"
#include "bench/command.hpp"
#include "bench/inputs.hpp"
#include "bench/machine.hpp"
#include "bench/row.hpp"
#include "bench/timer.hpp"
#include "cases/mirror.hpp"
#include "cases/place.hpp"

namespace attn::bench {
namespace {

using nlohmann::json;

struct Named {
  const char* name;
  const char* problem;
};
// Each needs kernels that the ones before it don't.
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
};
constexpr Named kSmall = {
    "n64-d64-causal-bf16",
    "dtype=bf16 heads_q=1 heads_kv=1 len_q=64 len_kv=64 dim_qk=64 dim_vo=64 causal"};

// A folder of its own, removed in the end.
class Folder {
 public:
  Folder()
      : path_(std::filesystem::temp_directory_path() /
              ("attn-latency-" + std::to_string(getpid()))) {
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

struct Setting {
  const BenchOptions& options;
  cases::DeviceQueue& queue;
  std::string cache_dir;
};

// A context with one problem's memory on the device, whose plan is made and whose kernels are not
// loaded.
class Caller {
 public:
  Caller(const Setting& setting, const Named& named, Pass pass)
      : queue_(setting.queue),
        context_(context_options(setting)),
        cell_(custom_cell(named.problem, pass)),
        name_(named.name),
        inputs_(cell_),
        mirror_(queue_) {
    plan_ = plan(context_, pass, cell_.problem, Device::cuda);
    mirror_.add_tensors(pass, cell_.problem, inputs_.arguments);
    arguments_ = mirror_.arguments(pass, cell_.problem, inputs_.arguments);
    arguments_.workspace = queue_.take(plan_.workspace_bytes);
    arguments_.workspace_size = plan_.workspace_bytes;
    queue_.synchronize();
  }
  ~Caller() { queue_.give_back(arguments_.workspace); }
  Caller(const Caller&) = delete;
  Caller& operator=(const Caller&) = delete;

  // What a row says of it.
  [[nodiscard]] json about() const {
    return {{"pass", pass_name(cell_.pass)},
            {"problem", to_string(cell_.problem)},
            {"kernel", plan_.kernel}};
  }
  // "/d64-causal-bf16/fwd"
  [[nodiscard]] std::string name() const {
    return std::string("/") + name_ + "/" + pass_name(cell_.pass);
  }

  // Seconds until the result of one call is there.
  double to_result() {
    return seconds_of([this] {
      call();
      queue_.synchronize();
    });
  }

  // Seconds that a call takes of the host: the median of bursts that the stream takes in without
  // waiting.
  double of_host() {
    constexpr int kBurst = 200;
    constexpr int kBursts = 50;
    std::vector<double> seconds;
    for (int n = 0; n < kBursts; ++n) {
      seconds.push_back(seconds_of([this] {
                          for (int m = 0; m < kBurst; ++m) call();
                        }) /
                        kBurst);
      queue_.synchronize();
    }
    return median(seconds);
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

  cases::DeviceQueue& queue_;
  Context context_;
  Cell cell_;
  const char* name_;
  Inputs inputs_;
  cases::Mirror mirror_;
  PlanSummary plan_;
  Arguments arguments_;
};

// Prints and keeps the rows.
class Report {
 public:
  Report(const BenchOptions& options, const Opened& opened)
      : options_(options),
        machine_(this_machine(opened)),
        file_(row_path(options.out, machine_, "cuda")) {
    if (!options.json) std::printf("%s, %s\n", machine_.device.c_str(), machine_.driver.c_str());
  }

  void add(const std::string& what, double seconds, json more = json::object()) {
    json row = {{"backend", "cuda"},         {"device", machine_.device},
                {"driver", machine_.driver}, {"threads", 1},
                {"commit", machine_.commit}, {"date", machine_.date},
                {"cell", "latency/" + what}, {"pass", ""},
                {"us", seconds * 1e6}};
    row.update(more);
    const std::string line = row.dump();
    file_.append(line);
    if (options_.json) {
      std::printf("%s\n", line.c_str());
    } else {
      std::printf("%12.1f us  %s\n", seconds * 1e6, row["cell"].get<std::string>().c_str());
    }
    std::fflush(stdout);
  }

 private:
  const BenchOptions& options_;
  Machine machine_;
  RowFile file_;
};

// A first call that compiles, then one of a process that finds the binary on the disk: a copy of
// the folder stands for it, as what this process has loaded is kept by folder.
void first_calls(const Setting& setting, const Named& problem, Pass pass, Report& report) {
  const std::string folder = setting.cache_dir + "/" + problem.name + "-" + pass_name(pass);
  Setting cold = setting;
  cold.cache_dir = folder;
  {
    Caller caller(cold, problem, pass);
    report.add("first_call" + caller.name(), caller.to_result(), caller.about());
  }
  Setting cached = setting;
  cached.cache_dir = folder + "-copy";
  std::filesystem::copy(cold.cache_dir, cached.cache_dir, std::filesystem::copy_options::recursive);
  Caller caller(cached, problem, pass);
  report.add("cached_first_call" + caller.name(), caller.to_result(), caller.about());
}

void host_calls(const Setting& setting, const Named& problem, Pass pass, Report& report) {
  Caller caller(setting, problem, pass);
  caller.to_result();
  report.add("host_call" + caller.name(), caller.of_host(), caller.about());
}

}  // namespace

int run_latency(const BenchOptions& options) {
  const cases::Place place = cases::place_of(options.device, options.backend);
  if (place.device != Device::cuda) {
    throw std::invalid_argument("--latency is about CUDA: give --device cuda");
  }
  const cases::StartUp start = cases::time_start_up(place.ordinal);  // before all else
  const Opened opened(place);
  cases::DeviceQueue& queue = *opened.cuda;
  const auto current = queue.current();
  Report report(options, opened);
  report.add("driver_start", start.driver);
  report.add("context_start", start.context);
  report.add("compiler_start", start.compiler, {{"compiler", "NVRTC " + start.compiler_version}});
  const Folder folder;
  const Setting setting{options, queue, folder.path()};
  int failed = 0;
  const auto attempt = [&](auto&& measure, const Named& problem, Pass pass) {
    try {
      measure(setting, problem, pass, report);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s %s failed: %s\n", problem.name, pass_name(pass), error.what());
      ++failed;
    }
  };
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    for (const Named& problem : kFirstCalls) attempt(first_calls, problem, pass);
    attempt(host_calls, kSmall, pass);
  }
  return failed == 0 ? 0 : 1;
}

}  // namespace attn::bench
