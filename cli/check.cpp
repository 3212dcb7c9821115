// attn check: runs the list of cases that the tests are made of, on this machine.
#include "cases/check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cases/case.hpp"
#include "cli/commands.hpp"
#include "cli/failure.hpp"
#include "cli/progress.hpp"
#include "core/names.hpp"

namespace attn::cli {
namespace {

using nlohmann::ordered_json;

constexpr const char* kExamples = R"(
Examples:
  attn check                                  every case
  attn check --limit 200                      200 of them, evenly spread
  attn check --pass backward --option alibi   those with ALiBi
  attn check --shard 0/4                      a quarter of them
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
  cases::Filter filter;
  std::string shard;
  std::string backend;
  std::int32_t threads = 0;
  bool fail_fast = false;
  bool list = false;
  bool json = false;
  ShowProgress progress = ShowProgress::on_terminal;
};

template <class Enum>
Enum named(const char* flag, const std::string& text) {
  const auto value = core::value_of<Enum>(text);
  if (!value) throw BadInput(fmt::format("{} has no value '{}'", flag, text));
  return *value;
}

std::vector<cases::Case> selected(const CheckOptions& options) {
  std::vector<cases::Case> list;
  if (options.texts.empty()) {
    cases::Filter filter = options.filter;
    if (!options.pass.empty()) filter.pass = named<Pass>("--pass", options.pass);
    if (!options.dtype.empty()) filter.dtype = named<DType>("--dtype", options.dtype);
    if (!options.shard.empty()) {
      const int read = std::sscanf(options.shard.c_str(), "%d/%d", &filter.shard, &filter.shards);
      if (read != 2 || filter.shard < 0 || filter.shard >= filter.shards) {
        throw BadInput("--shard takes I/N with 0 <= I < N, not '" + options.shard + "'");
      }
    }
    list = cases::case_list(filter);
  }
  for (const std::string& text : options.texts) list.push_back(cases::parse_case(text));
  if (options.seed) {
    for (cases::Case& c : list) c.seed = *options.seed;
  }
  if (list.empty()) throw BadInput("no case matches");
  return list;
}

std::string shell_quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::string repeat_command(const CheckOptions& options, const cases::Case& c) {
  std::string command = "attn check --case " + shell_quoted(cases::to_string(c));
  if (!options.backend.empty()) command += " --backend " + shell_quoted(options.backend);
  if (options.threads > 0) command += fmt::format(" --threads {}", options.threads);
  return command;
}

void print_json(const CheckOptions& options, const cases::Case& c,
                const cases::CheckReport& report) {
  const char* result = report.skipped ? "skipped" : report.passed ? "passed" : "failed";
  ordered_json out = {{"case", cases::to_string(c)},       {"result", result},
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
  std::map<std::string, std::size_t> skipped;  // by reason
  double worst_ratio = 0.0;

  [[nodiscard]] std::size_t num_skipped() const {
    std::size_t sum = 0;
    for (const auto& [reason, count] : skipped) sum += count;
    return sum;
  }
};

void count(const cases::CheckReport& report, Totals& totals) {
  if (report.skipped) {
    ++totals.skipped[report.message];
  } else if (report.passed) {
    ++totals.passed;
    totals.worst_ratio = std::max(totals.worst_ratio, report.worst_ratio);
  } else {
    ++totals.failed;
  }
}

int list_cases(const std::vector<cases::Case>& list) {
  for (const cases::Case& c : list) fmt::print("{}\n", cases::to_string(c));
  return kOk;
}

int check(const CheckOptions& options) {
  const std::vector<cases::Case> list = selected(options);
  if (options.list) return list_cases(list);
  ContextOptions context_options;
  context_options.backend = options.backend;
  context_options.threads = options.threads;
  Context context(context_options);

  Totals totals;
  const auto start = std::chrono::steady_clock::now();
  {
    // Rewritten for each case; cleared while something is printed on stdout.
    auto progress = std::make_unique<Progress>(options.progress, "");
    for (std::size_t n = 0; n < list.size(); ++n) {
      const cases::Case& c = list[n];
      progress->set(fmt::format("[{}/{}] {} failed, {} skipped  {} {} {}", n + 1, list.size(),
                                totals.failed, totals.num_skipped(), to_string(c.pass),
                                to_string(c.problem.dtype), c.name));
      const cases::CheckReport report = cases::run_case(context, c);
      count(report, totals);
      const bool failed = !report.passed && !report.skipped;
      if (options.json) {
        print_json(options, c, report);
      } else if (failed) {
        progress.reset();
        fmt::print("FAILED {}\n  {}\n  {}\n", cases::to_string(c), report.message,
                   repeat_command(options, c));
        std::fflush(stdout);
        progress = std::make_unique<Progress>(options.progress, "");
      }
      if (failed && options.fail_fast) break;
    }
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (!options.json) {
    for (const auto& [reason, number] : totals.skipped) {
      fmt::print("skipped {}: {}\n", number, reason);
    }
    fmt::print(
        "{} passed, {} failed, {} skipped in {:.1f} s; largest error {:.2f} of its tolerance\n",
        totals.passed, totals.failed, totals.num_skipped(), seconds, totals.worst_ratio);
  }
  if (totals.failed > 0) return kCheckFailed;
  return totals.passed > 0 ? kOk : kUnsupported;
}

}  // namespace

Command add_check(CLI::App& root) {
  auto options = std::make_shared<CheckOptions>();
  CheckOptions& o = *options;
  CLI::App& app =
      *root.add_subcommand("check", "Compare this machine's results with the reference");
  app.footer(kExamples);
  app.add_option("--case", o.texts, "run this case, as printed by --list or by a failure")
      ->take_all()
      ->type_name("TEXT");
  app.add_option("--seed", o.seed, "seed of the inputs, instead of each case's own")
      ->type_name("N");
  app.add_option("--pass", o.pass, "only cases of this pass")->type_name("forward|backward|decode");
  app.add_option("--dtype", o.dtype, "only cases of this type")->type_name("f32|f16|bf16|f64");
  app.add_option("--name", o.filter.name, "only cases whose name contains this")->type_name("TEXT");
  app.add_option("--option", o.filter.option, "only cases with this option (see attn info)")
      ->type_name("NAME");
  app.add_option("--shard", o.shard, "every N-th case, from the I-th")->type_name("I/N");
  app.add_option("--limit", o.filter.limit, "at most so many, evenly spread")
      ->check(from_to(0, 1 << 30))
      ->type_name("N");
  app.add_option("--backend", o.backend, "cpu, reference, ... (default: by device)")
      ->type_name("NAME");
  app.add_option("--threads", o.threads, "of the CPU backend (default: all)")
      ->check(from_to(0, 65536))
      ->type_name("N");
  app.add_flag("--fail-fast", o.fail_fast, "stop at the first failure");
  app.add_flag("--list", o.list, "print the cases and stop");
  app.add_flag("--json", o.json, "one JSON line a case on stdout");
  app.add_flag_callback(
      "--progress", [&o] { o.progress = ShowProgress::always; },
      "show progress on stderr even when it is no terminal");
  return [options] { return check(*options); };
}

}  // namespace attn::cli
