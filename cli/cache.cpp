// attn cache: compiles kernels ahead of time; lists and clears the cache.
#include <fmt/format.h>

#include <algorithm>
#include <attn/attn.hpp>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/shipped.hpp"
#include "cli/commands.hpp"
#include "cli/failure.hpp"
#include "cli/progress.hpp"
#include "core/names.hpp"

namespace attn::cli {
namespace {

using nlohmann::ordered_json;

constexpr const char* kCacheExamples = R"(
Examples:
  attn cache build --arch 80,90,120      kernels of all that is tested and measured, for A100, H200
                                         and RTX 50; needs NVRTC, but no GPU and no driver
  attn cache build --problem "dtype=bf16 heads_q=8 heads_kv=8 len_q=4096 len_kv=4096 causal"
      The forward's and backward's kernels of one problem, for the devices of this machine.
  attn cache list                        what is there
  attn cache clear

The folder (--cache-dir, else ATTN_CACHE_DIR, else libattn in the user's cache folder) can be copied
to machines without NVRTC, which then run what is in it.)";

struct CacheOptions {
  std::string cache_dir;
  bool json = false;
  // For build.
  std::vector<std::string> problems;
  std::vector<std::string> passes;
  std::vector<std::int32_t> architectures;
  std::int32_t jobs = 0;
};

ContextOptions context_options(const CacheOptions& options) {
  ContextOptions made;
  made.cache_dir = options.cache_dir;
  return made;
}

std::vector<Pass> passes_of(const CacheOptions& options) {
  if (options.passes.empty()) return {Pass::forward, Pass::backward};
  std::vector<Pass> passes;
  for (const std::string& name : options.passes) {
    const auto pass = core::value_of<Pass>(name);
    if (!pass) throw BadInput("--pass is forward, backward or decode, not '" + name + "'");
    passes.push_back(*pass);
  }
  return passes;
}

std::vector<CacheRequest::Call> calls_of(const CacheOptions& options) {
  std::vector<CacheRequest::Call> calls;
  for (const std::string& text : options.problems) {
    const Problem problem = parse_problem(text);
    for (const Pass pass : passes_of(options)) calls.push_back({pass, problem});
  }
  if (!calls.empty()) return calls;
  calls = bench::shipped_calls();
  if (options.passes.empty()) return calls;
  const std::vector<Pass> passes = passes_of(options);
  std::erase_if(calls, [&](const CacheRequest::Call& call) {
    return std::find(passes.begin(), passes.end(), call.pass) == passes.end();
  });
  return calls;
}

// Builds one architecture at a time, so that each is reported when it is done. All devices of this
// machine together if none is named.
int build(const CacheOptions& options) {
  Context context(context_options(options));
  CacheRequest request;
  request.calls = calls_of(options);
  request.threads = options.jobs;
  std::vector<std::vector<std::int32_t>> turns;
  for (const std::int32_t architecture : options.architectures) turns.push_back({architecture});
  if (turns.empty()) turns.emplace_back();
  std::string refused;
  for (const std::vector<std::int32_t>& turn : turns) {
    const std::string name = turn.empty() ? "this machine's" : std::to_string(turn.front());
    request.architectures = turn;
    const auto start = std::chrono::steady_clock::now();
    CacheResult result;
    {
      const Progress progress(ShowProgress::on_terminal, "compiling for " + name);
      result = cache_build(context, request);
    }
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (result.refused > 0) refused = result.reason;
    if (options.json) {
      const ordered_json out = {{"architecture", name},
                                {"calls", request.calls.size()},
                                {"binaries", result.binaries},
                                {"compiled", result.compiled},
                                {"refused", result.refused},
                                {"reason", result.reason},
                                {"folder", cache_folder(context)},
                                {"seconds", seconds}};
      fmt::print("{}\n", out.dump());
      continue;
    }
    fmt::print("{}: {} binaries of {} calls, {} compiled in {:.1f} s, the others were there\n",
               name, result.binaries, request.calls.size(), result.compiled, seconds);
    if (result.refused > 0) {
      fmt::print("  {} calls have no kernel, the first: {}\n", result.refused, result.reason);
    }
  }
  if (!options.json) fmt::print("in {}\n", cache_folder(context));
  if (options.problems.empty() || refused.empty()) return kOk;
  // If --problem names the calls, a call without a kernel is an error.
  throw Error(ErrorCode::unsupported, refused);
}

int list(const CacheOptions& options) {
  Context context(context_options(options));
  const std::string folder = cache_folder(context);
  std::int64_t bytes = 0;
  std::size_t damaged = 0;
  ordered_json entries = ordered_json::array();
  const std::vector<CacheEntry> found = cache_list(context);
  for (const CacheEntry& entry : found) {
    bytes += entry.bytes;
    damaged += entry.valid ? 0 : 1;
    if (options.json) {
      entries.push_back({{"path", entry.path},
                         {"bytes", entry.bytes},
                         {"valid", entry.valid},
                         {"kernel", entry.kernel},
                         {"architecture", entry.architecture},
                         {"compiler", entry.compiler}});
    } else if (entry.valid) {
      fmt::print("{:<7} NVRTC {:<5} {:>8}  {}\n", entry.architecture, entry.compiler, entry.bytes,
                 entry.kernel);
    } else {
      fmt::print("damaged, rebuilt when it is needed: {}\n", entry.path);
    }
  }
  if (options.json) {
    const ordered_json out = {{"folder", folder}, {"bytes", bytes}, {"entries", entries}};
    fmt::print("{}\n", out.dump(2, ' ', false, ordered_json::error_handler_t::replace));
  } else {
    fmt::print("{} binaries, {} bytes, {} damaged, in {}\n", found.size(), bytes, damaged,
               folder.empty() ? "no folder: ATTN_CACHE_DIR and HOME are not set" : folder);
  }
  return kOk;
}

int clear(const CacheOptions& options) {
  Context context(context_options(options));
  const std::int64_t removed = cache_clear(context);
  fmt::print("{} binaries removed from {}\n", removed, cache_folder(context));
  return kOk;
}

}  // namespace

Command add_cache(CLI::App& root) {
  auto options = std::make_shared<CacheOptions>();
  CacheOptions& o = *options;
  CLI::App& app = *root.add_subcommand("cache", "Compiled kernels: make ahead, list, remove");
  app.footer(kCacheExamples);
  app.require_subcommand(1);
  CLI::App& make =
      *app.add_subcommand("build", "Compile kernels ahead, for machines without NVRTC");
  CLI::App& show = *app.add_subcommand("list", "What the cache holds");
  CLI::App& remove = *app.add_subcommand("clear", "Remove every binary");
  for (CLI::App* one : {&make, &show, &remove}) {
    one->add_option("--cache-dir", o.cache_dir, "default: ATTN_CACHE_DIR, else the user's")
        ->type_name("FOLDER");
  }
  make.add_option("--problem", o.problems, "default: all that is tested and measured")
      ->take_all()
      ->type_name("PROBLEM");
  make.add_option("--pass", o.passes, "default: forward,backward")
      ->delimiter(',')
      ->type_name("forward,backward,decode");
  make.add_option("--arch", o.architectures, "compute capabilities (default: this machine's)")
      ->delimiter(',')
      ->type_name("80,90,120");
  make.add_option("--jobs", o.jobs, "that compile at once (default: all processors)")
      ->check(from_to(0, 4096))
      ->type_name("N");
  make.add_flag("--json", o.json, "one JSON line an architecture on stdout");
  show.add_flag("--json", o.json, "one JSON object on stdout");
  return [options, &make, &show] {
    return make.parsed() ? build(*options) : show.parsed() ? list(*options) : clear(*options);
  };
}

}  // namespace attn::cli
