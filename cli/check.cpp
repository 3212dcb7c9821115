// attn check: runs the case list of the tests on this machine.
#include "harness/check.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cli/commands.hpp"
#include "cli/failure.hpp"
#include "cli/progress.hpp"
#include "core/names.hpp"
#include "core/suggest.hpp"
#include "core/validate.hpp"
#include "harness/case.hpp"
#include "harness/device.hpp"
#include "harness/inputs.hpp"
#include "harness/place.hpp"

namespace attn::cli {
namespace {

using nlohmann::ordered_json;

constexpr const char* kCheckExamples = R"(
Examples:
  attn check                                  every case
  attn check --limit 200                      200 of them, evenly spread
  attn check --pass backward --option alibi   those with ALiBi
  attn check --shard 0/4                      a quarter of them
  attn check --device cuda --dtype bf16       on the GPU; what it has no kernel for is counted by reason
  attn check --device webgpu --limit 60       through WebGPU, whichever GPU or driver serves it
  attn check --case "forward name=causal seed=3 : dtype=f32 heads_q=2 heads_kv=2 len_q=33 len_kv=70 causal"
                                              one case, as failures print it

Each case is run and compared elementwise with the float64 reference; a failure prints what was wrong
and the command that repeats it. Exit codes: 0 all passed, 1 a case failed, 2 nothing matches or a
bad flag, 3 every case was skipped because no backend does it.)";

struct CheckOptions {
  std::vector<std::string> texts;
  std::optional<std::uint64_t> seed;
  std::string pass;
  std::string dtype;
  std::string precision;
  harness::Filter filter;
  std::string shard;
  bool none = false;  // --limit 0
  std::string backend;
  std::string device;
  bool exact = false;
  std::int64_t jobs = 0;
  std::int32_t threads = 0;
  bool fail_fast = false;
  bool list = false;
  bool json = false;
  bool verbose = false;
  ShowProgress progress = ShowProgress::on_terminal;
};

template <class Enum>
Enum named(const char* flag, const std::string& text) {
  std::vector<std::string> names;
  for (const auto& entry : core::names_of(Enum{})) names.emplace_back(entry.name);
  const auto value = core::value_of<Enum>(text);
  if (value) return *value;
  throw BadInput(fmt::format("{}: found '{}'; accepted {}{}", flag, text, fmt::join(names, ", "),
                             core::did_you_mean(text, names)));
}

void check_option(const std::string& option) {
  std::vector<std::string> names;
  for (const harness::OptionInfo& one : harness::option_list()) names.push_back(one.name);
  if (option.empty() || std::ranges::count(names, option) != 0) return;
  throw BadInput(fmt::format("--option: found '{}'; accepted {}{}", option, fmt::join(names, ", "),
                             core::did_you_mean(option, names)));
}

// total_q and total_kv of packed tensors follow from the lengths that a case draws from its seed.
// Sets them if they were left out or the seed was changed; else checks them.
void settle_totals(harness::Case& c, bool drawn_anew) {
  const Problem said = c.problem;
  harness::set_totals(c);
  const auto check = [&](const char* name, std::int64_t found, std::int64_t needed) {
    if (drawn_anew || found == 0 || found == needed) return;
    throw BadInput(
        fmt::format("{}: found {}; the lengths that seed {} draws come to {}, which is "
                    "accepted, or {} left out",
                    name, found, c.seed, needed, name));
  };
  check("total_q", said.total_q, c.problem.total_q);
  check("total_kv", said.total_kv, c.problem.total_kv);
}

// One buffer holds q, k and v of a sequence side by side, so they have the same rows and one type.
void check_fused_qkv(const harness::Case& c) {
  const Problem& p = c.problem;
  if (c.memory != harness::Memory::fused_qkv || p.page_size > 0) return;  // pages are never fused
  const auto check = [](bool accepted, const std::string& found, const char* rule) {
    if (accepted) return;
    throw BadInput(fmt::format("memory=fused_qkv: found {}; accepted {}", found, rule));
  };
  check(p.layout_q == p.layout_kv, "q and k in different layouts", "both padded or both packed");
  check(p.len_q == p.len_kv, fmt::format("len_q={} len_kv={}", p.len_q, p.len_kv),
        "len_q == len_kv");
  check(p.total_q == p.total_kv,
        fmt::format("total_q={} total_kv={}, which seed {} draws", p.total_q, p.total_kv, c.seed),
        "total_q == total_kv");
  check(p.kv_type() == p.dtype, "another dtype_kv", "k and v of q's type");
  check(c.expanded == harness::Expanded::none, "expanded", "no expanded tensors");
}

std::vector<harness::Case> selected(const CheckOptions& options) {
  std::vector<harness::Case> list;
  if (options.texts.empty()) {
    check_option(options.filter.option);
    harness::Filter filter = options.filter;
    if (!options.pass.empty()) filter.pass = named<Pass>("--pass", options.pass);
    if (!options.dtype.empty()) filter.dtype = named<DType>("--dtype", options.dtype);
    if (!options.precision.empty()) {
      filter.precision = named<Precision>("--precision", options.precision);
    }
    if (!options.shard.empty()) {
      const int read = std::sscanf(options.shard.c_str(), "%d/%d", &filter.shard, &filter.shards);
      if (read != 2 || filter.shard < 0 || filter.shard >= filter.shards) {
        throw BadInput("--shard: found '" + options.shard + "'; accepted I/N with 0 <= I < N");
      }
    }
    list = harness::case_list(filter);
  }
  for (const std::string& text : options.texts) {
    list.push_back(harness::parse_case(text));
    const core::Status status = core::validate_problem(list.back().pass, list.back().problem);
    if (!status.ok()) throw Error(status.code, "--case: " + status.message);
  }
  if (options.seed) {
    for (harness::Case& c : list) c.seed = *options.seed;
  }
  for (harness::Case& c : list) {
    settle_totals(c, options.seed.has_value());
    check_fused_qkv(c);
  }
  if (list.empty()) {
    throw BadInput(
        "no case matches --pass, --dtype, --name, --option and --shard together; attn "
        "check --list shows all");
  }
  if (options.none) list.clear();
  return list;
}

std::string shell_quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::string repeat_command(const CheckOptions& options, const harness::Case& c) {
  std::string command = "attn check --case " + shell_quoted(harness::to_string(c));
  if (!options.backend.empty()) command += " --backend " + shell_quoted(options.backend);
  if (!options.device.empty()) command += " --device " + shell_quoted(options.device);
  if (options.threads > 0) command += fmt::format(" --threads {}", options.threads);
  return command;
}

void print_json(const CheckOptions& options, const harness::Case& c,
                const harness::CheckReport& report) {
  const char* result = report.skipped ? "skipped" : report.passed ? "passed" : "failed";
  ordered_json out = {{"case", harness::to_string(c)},     {"result", result},
                      {"message", report.message},         {"worst_ratio", report.worst_ratio},
                      {"worst_error", report.worst_error}, {"backend", report.backend},
                      {"kernel", report.kernel},           {"q_tiles", report.q_tiles},
                      {"kv_tiles", report.kv_tiles}};
  if (!report.passed && !report.skipped) out["repeat"] = repeat_command(options, c);
  fmt::print("{}\n", out.dump(-1, ' ', false, ordered_json::error_handler_t::replace));
}

struct Totals {
  std::size_t passed = 0;
  std::size_t failed = 0;
  std::map<std::string, std::size_t> ran;      // by backend and kernel
  std::map<std::string, std::size_t> skipped;  // by reason
  double worst_ratio = 0.0;

  [[nodiscard]] std::size_t num_skipped() const {
    std::size_t sum = 0;
    for (const auto& [reason, count] : skipped) sum += count;
    return sum;
  }
};

void count(const harness::CheckReport& report, Totals& totals) {
  if (report.skipped) {
    ++totals.skipped[report.message];
    return;
  }
  if (!report.kernel.empty()) ++totals.ran[report.backend + " " + report.kernel];
  if (report.passed) {
    ++totals.passed;
    totals.worst_ratio = std::max(totals.worst_ratio, report.worst_ratio);
  } else {
    ++totals.failed;
  }
}

int list_cases(const std::vector<harness::Case>& list) {
  for (const harness::Case& c : list) fmt::print("{}\n", harness::to_string(c));
  return kOk;
}

// Runs the cases in order; the next free worker takes the next case.
class Checker {
 public:
  Checker(const CheckOptions& options, const std::vector<harness::Case>& list, harness::Place place)
      : options_(options),
        list_(list),
        place_(place),
        progress_(std::make_unique<Progress>(options.progress, "")),
        context_(context_options(options, place)),
        asked_(place.device == Device::host ? "" : harness::backend_for(place, options.backend)) {}

  Totals run() {
    const std::int64_t processors = std::max(1u, std::thread::hardware_concurrency());
    const bool on_host = place_.device == Device::host;  // backends on the host use several threads
    const std::int64_t jobs = options_.jobs > 0 ? options_.jobs : on_host ? 1 : processors;
    std::vector<std::thread> threads;
    for (std::int64_t n = 1; n < std::min<std::int64_t>(jobs, std::ssize(list_)); ++n) {
      threads.emplace_back([this] { work(); });
    }
    work();
    for (std::thread& thread : threads) thread.join();
    progress_.reset();
    if (error_) std::rethrow_exception(error_);
    return totals_;
  }

 private:
  static ContextOptions context_options(const CheckOptions& options, harness::Place place) {
    ContextOptions out;
    out.backend = harness::backend_for(place, options.backend);
    out.threads = options.threads;
    return out;
  }

  void work() {
    try {
      std::unique_ptr<harness::DeviceQueue> queue;
      if (place_.device == Device::cuda) {
        queue = std::make_unique<harness::DeviceQueue>(place_.ordinal, options_.exact);
      }
      for (std::size_t n = next_++; n < list_.size(); n = next_++) {
        say(n);
        const auto start = std::chrono::steady_clock::now();
        const harness::CheckReport report =
            harness::run_case(context_, list_[n], queue.get(), asked_);
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
        take(list_[n], report);
        if (options_.verbose) say_end(n, took.count());
      }
    } catch (...) {
      const std::scoped_lock lock(mutex_);
      error_ = std::current_exception();
      next_ = list_.size();
    }
  }

  void say(std::size_t n) {
    const harness::Case& c = list_[n];
    const std::scoped_lock lock(mutex_);
    if (options_.verbose) {
      fmt::print("begins {}/{}: {}\n", n + 1, list_.size(), harness::to_string(c));
      std::fflush(stdout);
    }
    progress_->set(fmt::format("[{}/{}] {} failed, {} skipped  {} {} {}", n + 1, list_.size(),
                               totals_.failed, totals_.num_skipped(), to_string(c.pass),
                               to_string(c.problem.dtype), c.name));
  }

  void say_end(std::size_t n, double seconds) {
    const std::scoped_lock lock(mutex_);
    fmt::print("ended {}/{} after {:.2f} s\n", n + 1, list_.size(), seconds);
    std::fflush(stdout);
  }

  void take(const harness::Case& c, const harness::CheckReport& report) {
    const std::scoped_lock lock(mutex_);
    count(report, totals_);
    const bool failed = !report.passed && !report.skipped;
    if (options_.json) {
      print_json(options_, c, report);
    } else if (failed) {
      progress_.reset();  // removed while stdout is printed to
      fmt::print("FAILED {}\n  {}\n  {}\n", harness::to_string(c), report.message,
                 repeat_command(options_, c));
      if (report.device_lost) fmt::print("  the device can't be used any more: stopped\n");
      std::fflush(stdout);
      progress_ = std::make_unique<Progress>(options_.progress, "");
    }
    if (report.device_lost || (failed && options_.fail_fast)) next_ = list_.size();
  }

  const CheckOptions& options_;
  const std::vector<harness::Case>& list_;
  harness::Place place_;
  std::unique_ptr<Progress> progress_;
  Context context_;
  std::string asked_;  // the only backend whose reasons are reported; empty: all
  std::atomic<std::size_t> next_{0};
  std::mutex mutex_;
  Totals totals_;
  std::exception_ptr error_;
};

int check(const CheckOptions& options) {
  const std::vector<harness::Case> list = selected(options);
  if (options.list) return list_cases(list);
  const harness::Place place = harness::place_of(options.device, options.backend);
  const auto start = std::chrono::steady_clock::now();
  const Totals totals = Checker(options, list, place).run();
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (!options.json) {
    for (const auto& [kernel, number] : totals.ran) fmt::print("ran {}: {}\n", number, kernel);
    for (const auto& [reason, number] : totals.skipped) {
      fmt::print("skipped {}: {}\n", number, reason);
    }
    fmt::print(
        "{} passed, {} failed, {} skipped in {:.1f} s; largest error {:.2f} of its tolerance\n",
        totals.passed, totals.failed, totals.num_skipped(), seconds, totals.worst_ratio);
  }
  if (totals.failed > 0) return kCheckFailed;
  return totals.passed > 0 || list.empty() ? kOk : kUnsupported;
}

}  // namespace

Command add_check(CLI::App& root) {
  auto options = std::make_shared<CheckOptions>();
  CheckOptions& o = *options;
  CLI::App& app =
      *root.add_subcommand("check", "Compare this machine's results with the reference");
  app.footer(kCheckExamples);
  app.add_option("--case", o.texts, "run this case, as printed by --list or by a failure")
      ->take_all()
      ->type_name("TEXT");
  app.add_option("--seed", o.seed, "seed of the inputs, instead of each case's own")
      ->type_name("N");
  app.add_option("--pass", o.pass, "only cases of this pass")->type_name("forward|backward|decode");
  app.add_option("--dtype", o.dtype, "only cases of this type")
      ->type_name("f32|f16|bf16|f64|f8e4m3|f8e5m2");
  app.add_option("--precision", o.precision, "of the products of cases in f32, on CUDA")
      ->type_name("tf32x3|tf32|ieee");
  app.add_option("--name", o.filter.name, "only cases whose name contains this")->type_name("TEXT");
  app.add_option("--option", o.filter.option, "only cases with this option (see attn info)")
      ->type_name("NAME");
  app.add_option("--shard", o.shard, "every N-th case, from the I-th")->type_name("I/N");
  app.add_option_function<std::int64_t>(
         "--limit",
         [&o](std::int64_t limit) {
           o.filter.limit = limit;
           o.none = limit == 0;
         },
         "at most N cases, evenly spread; 0: none")
      ->check(from_to(0, 1 << 30))
      ->type_name("N");
  app.add_option("--backend", o.backend, "cpu, reference, ... (default: by device)")
      ->type_name("NAME");
  app.add_option("--device", o.device, "where it runs (default: where --backend works)")
      ->type_name("host|cuda|cuda:N|webgpu");
  app.add_flag("--exact", o.exact,
               "each tensor in a device allocation of just its size: for compute-sanitizer");
  app.add_option("--jobs", o.jobs, "cases at once (default: 1; on a device: all processors)")
      ->check(from_to(0, 4096))
      ->type_name("N");
  app.add_option("--threads", o.threads, "of the CPU backend (default: all)")
      ->check(thread_count())
      ->type_name("N");
  app.add_flag("--fail-fast", o.fail_fast, "stop at the first failure");
  app.add_flag("--list", o.list, "print the cases and stop");
  app.add_flag("--json", o.json, "one JSON line a case on stdout");
  app.add_flag("--verbose", o.verbose, "say of each case when it begins and when it has ended");
  app.add_flag_callback(
      "--progress", [&o] { o.progress = ShowProgress::always; },
      "show progress on stderr even when it is no terminal");
  return [options] { return check(*options); };
}

}  // namespace attn::cli
