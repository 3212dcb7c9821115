// attn_cuda_configs: compiles every Config that plans choose for the calls of bench/shipped.hpp
// without a GPU, and holds what the assembler says of each against what its plan expects.
//   attn_cuda_configs [--arch 90,80,120,86,89,100] [--every-type] [--jobs N] [--logs FOLDER]
//                     [--record FILE [--check N | --write]]
//   attn_cuda_configs --list   prints the Configs instead: see tools/compare_sass.py
// Exit status 1 where a kernel spills more than kMostSpilled, draws a note of the assembler (wgmma
// serialized, setmaxnreg ignored) or leaves no room for the blocks that its plan wants on a
// multiprocessor, where plans choose too many Configs or none for what other devices can, or where
// one does not compile.
// Two Configs that differ by f16 and bf16 alone compile to the same registers and spills (46 of 46
// pairs, chosen at random among three architectures, NVRTC 13.0, 2026-11-25). So only the first
// architecture compiles both, and of the family sm90 none does; elsewhere the one of bf16 stands
// for both. --every-type compiles all.
// --logs keeps the assembler's logs, so that only what changed is compiled the next time.
// --record reads what the assembler said before from FILE (resource_record.hpp) and compiles what
// is not in it, and with --check every N-th of what is, which must say the same again. --write then
// replaces FILE by what was compiled or found.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "bench/cells.hpp"
#include "bench/shipped.hpp"
#include "core/names.hpp"
#include "cuda/aot.hpp"
#include "cuda/host/architectures.hpp"
#include "cuda/host/occupancy.hpp"
#include "cuda/operations.hpp"
#include "resource_record.hpp"

namespace attn::cuda::test {
namespace {

// Configs of one architecture for the case list in every type and the benchmark. The list alone
// needs at most 490 (plan_test.cpp).
constexpr std::size_t kMostConfigs = 450;
// In addition, of the kernels whose sources begin with these words.
constexpr std::pair<std::string_view, std::size_t> kMostConfigsOf[] = {
    {"sm80/decode.cu", 188},       {"sm80/forward_cache.cu", 14}, {"sm90/forward", 287},
    {"sm90/backward.cu", 250},     {"sm90/backward_wide.cu", 54}, {"sm90/backward_head.cu", 8},
    {"sm90/bias_gradient.cu", 38}, {"passes/merge.cu", 1},        {"passes/rope.cu", 1}};
// Bytes that a thread spills, stores plus loads, in the worst of today's kernels, once for each
// tile of queries (docs/kernels/sm80.md). To be lowered, never raised.
constexpr int kMostSpilled = 540;
// The same of the two-warp tiles that dims above 128 take where shared memory is smallest.
constexpr int kMostSpilledOfLastResort = 3840;

int most_spilled(const Config& config) {
  if (config.get("warps") == 2) return kMostSpilledOfLastResort;
  return config.get("accumulate_tiles") > 1 ? kMostSpilledWithSums : kMostSpilled;
}

struct Options {
  std::vector<int> architectures{90, 80, 120, 86, 89, 100};
  unsigned jobs = std::max(1u, std::thread::hardware_concurrency());
  std::string logs;
  bool every_type = false;
  bool list = false;
  std::string record;
  std::size_t check = 0;  // 0: nothing that is recorded is compiled
  bool write = false;
};

// One Config for one architecture, with every KernelSpec of the plans that use it.
struct Job {
  const DeviceFacts* facts;
  std::vector<KernelSpec> specs;
  [[nodiscard]] const Config& config() const { return specs[0].config; }
};

struct Outcome {
  std::string key;
  ResourceReport report;
  bool compiled = false;  // or found in the record
  std::vector<std::string> problems;
};

class Compiler {
 public:
  Compiler(const Nvrtc& nvrtc, std::string logs) : nvrtc_(nvrtc), logs_(std::move(logs)) {}

  core::Status key_of(const Job& job, std::string& key) const {
    return record_key(nvrtc_, job.config(), job.facts->capability(), key);
  }
  // The assembler's log.
  core::Status log_of(const Job& job, const std::string& key, std::string& log) const {
    const std::string architecture = architecture_of(job);
    if (architecture.empty()) {
      return core::Status::unsupported(nvrtc_.path() + " does not compile for " +
                                       std::to_string(job.facts->capability()));
    }
    const Unit* unit = nullptr;
    const core::Status status = find_unit(job.config().source(), unit);
    if (!status.ok()) return status;
    const std::string path = logs_ + "/" + key + ".log";
    if (!logs_.empty() && read(path, log)) return {};
    const Compiled compiled =
        nvrtc_.compile(*unit, header_text(job.config()), compile_options(), architecture);
    log = compiled.log;
    if (compiled.status.ok() && !logs_.empty()) std::ofstream(path) << log;
    return compiled.status;
  }

 private:
  [[nodiscard]] std::string architecture_of(const Job& job) const {
    return choose_architecture(job.facts->capability(), nvrtc_.capabilities());
  }
  static bool read(const std::string& path, std::string& text) {
    const std::ifstream file(path);
    std::ostringstream read;
    read << file.rdbuf();
    text = read.str();
    return !text.empty();
  }

  const Nvrtc& nvrtc_;
  std::string logs_;
};

// Reason -> number of calls that have no kernel for it.
std::map<std::string, std::size_t> refusals(const std::vector<CacheRequest::Call>& calls,
                                            const DeviceFacts& facts) {
  std::map<std::string, std::size_t> counts;
  for (const auto& [pass, problem] : calls) {
    const core::Result<CudaPlan> plan = make_plan(pass, problem, facts);
    if (!plan.ok()) ++counts[plan.reason()];
  }
  return counts;
}

// The Config with bf16 for f16.
Config in_bf16(const Config& config) {
  Config changed = config;
  for (std::size_t i = 0; i < config.size(); ++i) {
    const auto& [name, value] = config[i];
    if (std::string_view(name).ends_with("type") && value == static_cast<int>(DType::f16)) {
      changed.set(name, static_cast<int>(DType::bf16));
    }
  }
  return changed;
}

// Adds the kernels of a Config of f16 to the Config of bf16 that stands for it, where there is one.
// sm90_alone: only for kernels of the family sm90, which take longest to compile.
void merge_types(std::map<std::string, Job>& by_config, bool sm90_alone) {
  for (auto it = by_config.begin(); it != by_config.end();) {
    const Config& config = it->second.specs[0].config;
    if (sm90_alone && !std::string_view(config.source()).starts_with("sm90/")) {
      ++it;
      continue;
    }
    const auto other = by_config.find(to_string(in_bf16(config)));
    const bool is_f16 = config.get("dtype") == static_cast<int>(DType::f16) &&
                        config.get("bias_type") != static_cast<int>(DType::bf16);
    if (!is_f16 || other == by_config.end()) {
      ++it;
      continue;
    }
    std::vector<KernelSpec>& specs = other->second.specs;
    specs.insert(specs.end(), it->second.specs.begin(), it->second.specs.end());
    it = by_config.erase(it);
  }
}

// Those of the calls, and those of merge, which has no plan.
std::vector<KernelSpec> all_kernels(const std::vector<CacheRequest::Call>& calls,
                                    const DeviceFacts& facts) {
  std::vector<KernelSpec> kernels = kernels_for(calls, facts).kernels;
  kernels.insert(kernels.end(), operation_kernels().begin(), operation_kernels().end());
  return kernels;
}

// False where plans choose none or too many, or where the device is too small for some.
bool collect(const std::vector<CacheRequest::Call>& calls, int capability, const Options& options,
             std::vector<Job>& jobs) {
  const DeviceFacts* facts = typical_facts(capability);
  if (facts == nullptr) {
    std::printf("no facts of %d; known are %s\n", capability, known_capabilities().c_str());
    return false;
  }
  std::map<std::string, Job> by_config;
  for (const KernelSpec& spec : all_kernels(calls, *facts)) {
    Job& job = by_config[to_string(spec.config)];
    job.facts = facts;
    job.specs.push_back(spec);
  }
  const std::size_t num_configs = by_config.size();
  std::vector<std::string_view> sources;
  for (const auto& [name, job] : by_config) sources.emplace_back(job.specs[0].config.source());
  // The first architecture's Configs are compiled for every type.
  if (!options.every_type) merge_types(by_config, jobs.empty());
  for (const auto& [name, job] : by_config) jobs.push_back(job);
  std::printf("%d: %zu Configs of %zu calls, %zu to compile\n", capability, num_configs,
              calls.size(), by_config.size());
  bool good = true;
  const auto expect = [&](bool expected, const std::string& otherwise) {
    if (!expected) std::printf("FAILED: %s\n", otherwise.c_str());
    good = good && expected;
  };
  // Calls that no device has a kernel for are printed. Calls that only this one lacks are an error.
  const auto everywhere = refusals(calls, *typical_facts(90));
  for (const auto& [reason, count] : refusals(calls, *facts)) {
    std::printf("  %zu calls: %s\n", count, reason.c_str());
    expect(everywhere.contains(reason), "these have a kernel on other devices");
  }
  expect(num_configs > 0, "some Configs are to be needed");
  std::size_t others = num_configs;
  for (const auto& [source, most] : kMostConfigsOf) {
    const auto count = static_cast<std::size_t>(
        std::count_if(sources.begin(), sources.end(),
                      [&](std::string_view one) { return one.starts_with(source); }));
    expect(count <= most, "at most " + std::to_string(most) + " Configs of " + std::string(source) +
                              " are to be needed, found " + std::to_string(count));
    others -= count;
  }
  expect(others <= kMostConfigs, "at most " + std::to_string(kMostConfigs) +
                                     " Configs of other kernels are to be needed, found " +
                                     std::to_string(others));
  return good;
}

// What the assembler says of a Config, from the record unless `again`, and what is wrong with it.
Outcome examine(const Compiler& compiler, const ResourceRecord& record, const Job& job,
                bool again) {
  Outcome outcome;
  core::Status status = compiler.key_of(job, outcome.key);
  const auto recorded = record.find(outcome.key);
  if (recorded) outcome.report = *recorded;
  if (status.ok() && (!recorded || again)) {
    std::string log;
    status = compiler.log_of(job, outcome.key, log);
    outcome.compiled = true;
    outcome.report = read_resources(log);
    if (recorded && status.ok() && outcome.report != *recorded) {
      outcome.problems.emplace_back("compiles to other resources than the record has");
    }
  }
  if (!status.ok()) {
    outcome.problems.push_back(status.message);
    return outcome;
  }
  const std::vector<std::string>& notes = outcome.report.notes;
  outcome.problems.insert(outcome.problems.end(), notes.begin(), notes.end());
  for (const KernelSpec& spec : job.specs) {
    const std::string problem =
        flaw_of(outcome.report, spec, *job.facts, most_spilled(spec.config));
    if (!problem.empty()) outcome.problems.push_back(problem);
  }
  return outcome;
}

// By `threads` threads; in the order of jobs.
std::vector<Outcome> examine_all(const Compiler& compiler, const ResourceRecord& record,
                                 const std::vector<Job>& jobs, const Options& options) {
  std::vector<Outcome> outcomes(jobs.size());
  std::atomic<std::size_t> next{0};
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < options.jobs; ++i) {
    threads.emplace_back([&] {
      for (std::size_t at = next++; at < jobs.size(); at = next++) {
        const bool again = options.check > 0 && at % options.check == 0;
        outcomes[at] = examine(compiler, record, jobs[at], again);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

// Prints what is wrong with each Config; returns the number of those.
std::size_t print_problems(const std::vector<Job>& jobs, const std::vector<Outcome>& outcomes) {
  std::size_t failed = 0;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    if (outcomes[i].problems.empty()) continue;
    ++failed;
    std::printf("FAILED %d %s\n", jobs[i].facts->capability(), to_string(jobs[i].config()).c_str());
    for (const std::string& problem : outcomes[i].problems) {
      std::printf("  %s\n", problem.c_str());
    }
  }
  return failed;
}

// The numbers of the element types and precisions, then "90 sm80/forward.cu alibi=0 ..." for each
// Config, in the order in which calls need them, so that a line stays a kernel's when its constants
// are renamed.
int list_configs(const Options& options) {
  std::printf("types");
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::f64, DType::f8e4m3,
                            DType::f8e5m2, DType::i32, DType::u8, DType::i8}) {
    std::printf(" %s=%d", to_string(dtype), static_cast<int>(dtype));
  }
  std::printf(" none=%d", static_cast<int>(DType::none));
  for (const Precision precision : {Precision::tf32x3, Precision::tf32, Precision::ieee}) {
    std::printf(" %s=%d", core::name_of(precision), static_cast<int>(precision));
  }
  std::printf("\n");
  const std::vector<CacheRequest::Call> calls = bench::shipped_calls();
  for (const int capability : options.architectures) {
    const DeviceFacts* facts = typical_facts(capability);
    if (facts == nullptr) return 1;
    std::set<std::string> known;
    for (const KernelSpec& spec : all_kernels(calls, *facts)) {
      const std::string text = to_string(spec.config);
      if (known.insert(text).second) std::printf("%d %s\n", capability, text.c_str());
    }
  }
  return 0;
}

int run(const Options& options) {
  const auto start = std::chrono::steady_clock::now();
  std::string reason;
  const Nvrtc* nvrtc = Nvrtc::get(0, reason);
  if (nvrtc == nullptr) {
    std::printf("FAILED: %s\n", reason.c_str());
    return 1;
  }
  if (!options.logs.empty()) std::filesystem::create_directories(options.logs);
  const std::vector<CacheRequest::Call> calls = bench::shipped_calls();
  std::vector<Job> jobs;
  bool good = true;
  for (const int capability : options.architectures) {
    good = collect(calls, capability, options, jobs) && good;
  }
  ResourceRecord record;
  if (!options.record.empty() && !record.read(options.record)) {
    std::printf("FAILED: %s has a line that is no kernel's\n", options.record.c_str());
    return 1;
  }
  const std::vector<Outcome> outcomes =
      examine_all(Compiler(*nvrtc, options.logs), record, jobs, options);
  const std::size_t failed = print_problems(jobs, outcomes);
  const auto compiled = std::count_if(outcomes.begin(), outcomes.end(),
                                      [](const Outcome& one) { return one.compiled; });
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::printf(
      "%zd compiled with NVRTC %s and %zd taken from the record, %zu failed, in %.0f s on "
      "%u threads\n",
      compiled, version_text(nvrtc->version()).c_str(),
      static_cast<std::ptrdiff_t>(jobs.size()) - compiled, failed, seconds, options.jobs);
  if (options.write) {
    ResourceRecord now;
    for (const Outcome& one : outcomes) now.add(one.key, one.report);
    good = now.write(options.record) && good;
  }
  return good && failed == 0 ? 0 : 1;
}

int usage() {
  std::fprintf(stderr,
               "usage: attn_cuda_configs [--arch 90,80,120,86,89,100] [--every-type] [--jobs N] "
               "[--logs FOLDER] [--list] [--record FILE [--check N | --write]]\n");
  return 2;
}

int parse_and_run(const std::vector<std::string>& words) {
  Options options;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const bool more = i + 1 < words.size();
    if (words[i] == "--arch" && more) {
      options.architectures.clear();
      std::istringstream list(words[++i]);
      for (std::string one; std::getline(list, one, ',');) {
        options.architectures.push_back(std::atoi(one.c_str()));
      }
    } else if (words[i] == "--jobs" && more) {
      options.jobs = static_cast<unsigned>(std::max(1, std::atoi(words[++i].c_str())));
    } else if (words[i] == "--logs" && more) {
      options.logs = words[++i];
    } else if (words[i] == "--record" && more) {
      options.record = words[++i];
    } else if (words[i] == "--check" && more) {
      options.check = static_cast<std::size_t>(std::max(0, std::atoi(words[++i].c_str())));
    } else if (words[i] == "--write") {
      options.write = true;
    } else if (words[i] == "--every-type") {
      options.every_type = true;
    } else if (words[i] == "--list") {
      options.list = true;
    } else {
      return usage();
    }
  }
  if (options.architectures.empty() || (options.write && options.record.empty())) return usage();
  return options.list ? list_configs(options) : run(options);
}

}  // namespace
}  // namespace attn::cuda::test

int main(int argc, char** argv) {
  return attn::cuda::test::parse_and_run(std::vector<std::string>(argv + 1, argv + argc));
}
