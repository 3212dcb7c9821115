// attn info: what this build and this machine can do.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <attn/attn.hpp>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cli/commands.hpp"
#include "cli/failure.hpp"
#include "cli/quiet_stderr.hpp"
#include "core/names.hpp"
#include "harness/case.hpp"
#include "harness/device.hpp"
#include "harness/place.hpp"

namespace attn::cli {
namespace {

using nlohmann::ordered_json;

constexpr const char* kInfoExamples = R"(
Examples:
  attn info                        version, threads, backends, what they support in short
  attn info --support              the table: each option, pass and type, and why not
  attn info --json                 all of it for scripts
  attn info --explain "dtype=bf16 heads_q=8 heads_kv=2 len_q=512 len_kv=512 causal"
  attn info --explain "len_q=1 len_kv=4096 page_size=16 lengths_kv" --pass decode
      The rules, each backend's verdict and the plan of a problem. The words are those that attn run
      prints as "problem": field=value, or a bare field to switch it on.)";

constexpr std::array kPasses = {Pass::forward, Pass::backward, Pass::decode};
constexpr std::array kTypes = {DType::f32, DType::f16,    DType::bf16,
                               DType::f64, DType::f8e4m3, DType::f8e5m2};

struct InfoOptions {
  std::string explain;
  std::string pass = to_string(Pass::forward);
  std::string backend;
  std::string device;
  bool support = false;
  bool json = false;
};

struct Cell {
  std::vector<std::string> types;              // supported
  std::map<std::string, std::string> reasons;  // of the others, by type
};

struct SupportRow {
  std::string option;
  std::string what;
  std::array<Cell, kPasses.size()> passes;
};

// 8-bit types have no backward.
std::span<const DType> types_of(Pass pass) {
  const std::span<const DType> all(kTypes);
  return pass == Pass::backward ? all.first(4) : all;
}

// An option that a pass does not have has an empty cell: validate refuses it, so the backend lacks
// nothing.
Cell cell_of(Context& context, const std::string& option, Pass pass) {
  Cell cell;
  for (const DType dtype : types_of(pass)) {
    try {
      const Verdict verdict =
          supports(context, pass, harness::option_case(option, pass, dtype).problem);
      if (verdict.supported) {
        cell.types.emplace_back(to_string(dtype));
      } else {
        cell.reasons[to_string(dtype)] = verdict.reason;
      }
    } catch (const Error& error) {
      const bool lacks = error.code() == ErrorCode::invalid_argument ||
                         error.code() == ErrorCode::unsupported;  // 8-bit keys in a backward
      if (!lacks) throw;
    }
  }
  return cell;
}

std::vector<SupportRow> support_table(const std::string& backend) {
  ContextOptions options;
  options.backend = backend;
  Context context(options);
  std::vector<SupportRow> rows;
  std::vector<harness::OptionInfo> list = harness::option_list();
  list.insert(list.begin(), {"", "no option: plain attention"});
  for (const harness::OptionInfo& option : list) {
    SupportRow row{option.name, option.what, {}};
    for (std::size_t n = 0; n < kPasses.size(); ++n) {
      row.passes[n] = cell_of(context, option.name, kPasses[n]);
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

std::string cell_text(const Cell& cell) {
  if (cell.types.empty()) return cell.reasons.empty() ? "-" : "no";
  if (cell.reasons.empty()) return "all";
  return fmt::format("{}", fmt::join(cell.types, " "));
}

void print_table(const std::string& backend, const std::vector<SupportRow>& rows) {
  fmt::print(
      "\nSupport of backend {} (all: f32 f16 bf16 f64, but for backward also f8e4m3 f8e5m2; "
      "-: the pass has no such option)\n",
      backend);
  fmt::print("  {:<20} {:<13} {:<13} {:<13}\n", "option", "forward", "backward", "decode");
  std::map<std::string, std::string> reasons;  // reason -> its first case
  for (const SupportRow& row : rows) {
    fmt::print("  {:<20} {:<13} {:<13} {:<13} {}\n", row.option.empty() ? "(plain)" : row.option,
               cell_text(row.passes[0]), cell_text(row.passes[1]), cell_text(row.passes[2]),
               row.what);
    for (std::size_t n = 0; n < kPasses.size(); ++n) {
      for (const auto& [type, reason] : row.passes[n].reasons) {
        reasons.emplace(reason, fmt::format("{} {} {}", row.option, to_string(kPasses[n]), type));
      }
    }
  }
  for (const auto& [reason, where] : reasons) fmt::print("  no ({}): {}\n", where, reason);
}

// One line per backend: the number of supported options of each pass, and the types of plain
// attention.
void print_summary(const std::string& backend, const std::vector<SupportRow>& rows) {
  std::string line;
  for (std::size_t n = 0; n < kPasses.size(); ++n) {
    std::size_t options = 0;
    std::size_t supported = 0;
    for (const SupportRow& row : rows) {
      if (row.option.empty() || cell_text(row.passes[n]) == "-") continue;
      ++options;
      if (!row.passes[n].types.empty()) ++supported;
    }
    line +=
        fmt::format("{}{} {} of {}", n == 0 ? "" : ", ", to_string(kPasses[n]), supported, options);
  }
  fmt::print("  {:<10} {}; {}\n", backend, line, fmt::join(rows.front().passes[0].types, " "));
}

ordered_json to_json(const std::vector<SupportRow>& rows) {
  ordered_json out = ordered_json::array();
  for (const SupportRow& row : rows) {
    ordered_json entry = {{"option", row.option}, {"what", row.what}};
    for (std::size_t n = 0; n < kPasses.size(); ++n) {
      entry[to_string(kPasses[n])] = {{"types", row.passes[n].types},
                                      {"reasons", row.passes[n].reasons}};
    }
    out.push_back(std::move(entry));
  }
  return out;
}

int explain_problem(const InfoOptions& options) {
  const auto pass = core::value_of<Pass>(options.pass);
  if (!pass) {
    throw BadInput("--pass: found '" + options.pass + "'; accepted forward, backward, decode");
  }
  const Problem problem = parse_problem(options.explain);
  const harness::Place place = harness::place_of(options.device, options.backend);
  const Device device = harness::device_of_tensors(place);
  ContextOptions context_options;
  context_options.backend =
      device == place.device ? options.backend : harness::backend_for(place, options.backend);
  const QuietStderr quiet;
  Context context(context_options);
  // A device that does not exist has a verdict too: the backend's. One that exists becomes current.
  std::unique_ptr<harness::DeviceQueue> queue;
  if (place.ordinal > 0) queue = std::make_unique<harness::DeviceQueue>(place.ordinal);
  const auto current = queue ? queue->current() : nullptr;
  const std::string text = explain(context, *pass, problem, device);
  const Verdict verdict = supports(context, *pass, problem, device);
  if (options.json) {
    ordered_json out = {{"pass", options.pass},           {"problem", to_string(problem)},
                        {"supported", verdict.supported}, {"backend", verdict.backend},
                        {"reason", verdict.reason},       {"explain", text}};
    if (verdict.supported) {
      const PlanSummary chosen = plan(context, *pass, problem, device);
      out["kernel"] = chosen.kernel;
      out["config"] = chosen.config;
      out["extra_bytes"] = chosen.workspace_bytes;
    }
    fmt::print("{}\n", out.dump(2));
  } else {
    fmt::print("{}{}", text, text.empty() || text.back() != '\n' ? "\n" : "");
  }
  return verdict.supported ? kOk : kUnsupported;
}

struct Findings {
  std::int32_t threads = 0;
  std::vector<BackendInfo> backends;
  std::vector<std::pair<std::string, std::vector<SupportRow>>> support;  // of the usable ones
};

// Drivers are loaded here and write to stderr, which is hidden.
Findings findings_of(const InfoOptions& options) {
  const QuietStderr quiet;
  const std::string only =
      harness::backend_for(harness::place_of(options.device, options.backend), options.backend);
  ContextOptions named;
  named.backend = only;
  const Context refuses_unknown_names(named);
  Context context;
  Findings found{context.threads(), backends(context), {}};
  std::erase_if(found.backends, [&](const BackendInfo& backend) {
    const bool of_device = backend.name == "cuda" || backend.name == "webgpu";
    return only.empty() ? options.device == "host" && of_device : backend.name != only;
  });
  for (const BackendInfo& backend : found.backends) {
    if (backend.usable) found.support.emplace_back(backend.name, support_table(backend.name));
  }
  return found;
}

void print_json(const Findings& found) {
  ordered_json out = {{"version", version()}, {"threads", found.threads}};
  out["backends"] = ordered_json::array();
  out["support"] = ordered_json::object();
  for (const BackendInfo& backend : found.backends) {
    out["backends"].push_back({{"name", backend.name},
                               {"built", backend.built},
                               {"usable", backend.usable},
                               {"detail", backend.detail}});
  }
  for (const auto& [backend, rows] : found.support) out["support"][backend] = to_json(rows);
  fmt::print("{}\n", out.dump(2));
}

int info(const InfoOptions& options) {
  if (!options.explain.empty()) return explain_problem(options);
  const Findings found = findings_of(options);
  if (options.json) {
    print_json(found);
    return kOk;
  }
  fmt::print("attn {}, {} threads\n", version(), found.threads);
  if (options.support) {
    for (const auto& [backend, rows] : found.support) print_table(backend, rows);
    return kOk;
  }
  fmt::print("\nBackends\n");
  for (const BackendInfo& backend : found.backends) {
    const char* state = backend.usable ? "usable" : backend.built ? "not usable" : "not built";
    fmt::print("  {:<10} {:<11} {}\n", backend.name, state, backend.detail);
  }
  fmt::print("\nSupport: options of each pass, types of plain attention\n");
  for (const auto& [backend, rows] : found.support) print_summary(backend, rows);
  fmt::print(
      "\nattn info --support            each option, pass and type, and why not\n"
      "attn info --explain PROBLEM    what would run\n");
  return kOk;
}

}  // namespace

Command add_info(CLI::App& root) {
  auto options = std::make_shared<InfoOptions>();
  CLI::App& app = *root.add_subcommand("info", "Version, backends, what is supported and why");
  app.footer(kInfoExamples);
  app.add_option("--explain", options->explain, "the chain for a problem")->type_name("PROBLEM");
  app.add_option("--pass", options->pass, "of --explain (default: forward)")
      ->type_name("forward|backward|decode");
  app.add_option("--backend", options->backend, "only this one");
  app.add_option("--device", options->device, "only its backends; of --explain: where it would run")
      ->type_name("host|cuda|cuda:N|webgpu");
  app.add_flag("--support", options->support, "the table of options, passes and types");
  app.add_flag("--json", options->json, "one JSON object on stdout");
  return [options] { return info(*options); };
}

}  // namespace attn::cli
