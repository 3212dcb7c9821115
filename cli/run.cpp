// Runs the requested passes and reports them.
#include "cli/run.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "bench/work.hpp"
#include "cli/plausible.hpp"
#include "harness/mirror.hpp"
#include "harness/place.hpp"

namespace attn::cli {
namespace {

using nlohmann::ordered_json;

void call(Context& context, Pass pass, const Problem& problem, const Arguments& arguments) {
  switch (pass) {
    case Pass::forward: return attn::forward(context, problem, arguments);
    case Pass::backward: return attn::backward(context, problem, arguments);
    case Pass::decode: return attn::decode(context, problem, arguments);
  }
}

// Copies the numbers to the arguments and sets the flags that they imply.
void apply(const RunNumbers& numbers, Arguments& arguments, ProblemFlags& flags) {
  arguments.scale = numbers.scale;
  if (numbers.softcap) {
    arguments.softcap = *numbers.softcap;
    flags.set("softcap");
  }
  if (numbers.dropout) {
    arguments.dropout_p = *numbers.dropout;
    flags.set("dropout");
  }
  if (numbers.seed) arguments.seed = *numbers.seed;
  if (numbers.offset) arguments.offset = *numbers.offset;
  if (numbers.diag) {
    arguments.diag = *numbers.diag;
    flags.set("diagonal=explicit");
  }
  if (!numbers.origin.empty()) {
    const auto& at = numbers.origin;
    arguments.origin = {at[0], at[1], at[2], at[3], at.size() > 4 ? at[4] : 0};
  }
  if (numbers.rope_base) arguments.rope_base = *numbers.rope_base;
  if (numbers.rope_pos_offset) arguments.rope_pos_offset = *numbers.rope_pos_offset;
}

// The problem that the tensors describe, with the default outputs of Problem, changed by the flags.
Problem problem_of(const Arguments& arguments, const ProblemFlags& flags) {
  const Problem defaults;
  Problem problem = describe(arguments);
  problem.lse = defaults.lse;
  problem.dq = defaults.dq;
  problem.dk = defaults.dk;
  problem.dv = defaults.dv;
  return parse_problem(to_string(problem) + flags.words());
}

std::vector<double> seconds_on_host(Context& context, Pass pass, const Problem& problem,
                                    const Arguments& arguments, std::int64_t repeat) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> seconds;
  for (std::int64_t n = 0; n < repeat; ++n) {
    const auto start = Clock::now();
    call(context, pass, problem, arguments);
    seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  }
  return seconds;
}

// Copies the tensors to the device and the written ones back. Returns device times.
std::vector<double> seconds_on_device(Context& context, Pass pass, const Problem& problem,
                                      const Arguments& arguments, std::int64_t repeat,
                                      harness::DeviceQueue& queue) {
  harness::Mirror mirror(queue);
  mirror.add_tensors(pass, problem, arguments);
  const Arguments moved = mirror.arguments(pass, problem, arguments);
  attn::prepare(context, pass, problem, Device::cuda);
  queue.mark();
  for (std::int64_t n = 0; n < repeat; ++n) {
    call(context, pass, problem, moved);
    queue.mark();
  }
  std::vector<double> seconds = queue.spans();
  mirror.download();
  return seconds;
}

PassReport timed(Context& context, Pass pass, const Problem& problem, const Arguments& arguments,
                 const RunOptions& options, harness::DeviceQueue* queue) {
  PassReport report;
  report.pass = pass;
  report.plan = attn::plan(context, pass, problem, queue ? Device::cuda : Device::host);
  const Progress progress(options.progress, fmt::format("{} on {} ({})", to_string(pass),
                                                        report.plan.backend, report.plan.kernel));
  report.seconds =
      queue ? seconds_on_device(context, pass, problem, arguments, options.repeat, *queue)
            : seconds_on_host(context, pass, problem, arguments, options.repeat);
  std::sort(report.seconds.begin(), report.seconds.end());
  const bench::Work work = bench::work_of(pass, problem, arguments);
  report.flop = work.flop;
  report.kv_bytes = work.kv_bytes;
  return report;
}

double median(const PassReport& pass) {
  return pass.seconds[pass.seconds.size() / 2];
}

double per_second(double amount, const PassReport& pass) {
  const double seconds = median(pass);
  return seconds > 0.0 ? amount / seconds * 1e-9 : 0.0;
}

std::string readable_bytes(std::int64_t bytes) {
  if (bytes < 10 * 1024) return fmt::format("{} B", bytes);
  if (bytes < 10 * 1024 * 1024) return fmt::format("{:.1f} KiB", static_cast<double>(bytes) / 1024);
  return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1024 * 1024));
}

ordered_json to_json(const TensorComparison& check) {
  return {{"name", check.name},           {"against", check.against},
          {"passed", check.passed},       {"relative_error", check.relative_error},
          {"tolerance", check.tolerance}, {"elements", check.elements},
          {"failed", check.failed},       {"worst", check.worst},
          {"rows", check.rows},           {"nan_rows", check.nan_rows},
          {"problem", check.problem}};
}

void print_json(const RunReport& report, const RunOptions& options, const Inputs& inputs,
                const Outputs& outputs) {
  ordered_json passes = ordered_json::array();
  for (const PassReport& pass : report.passes) {
    passes.push_back({{"pass", to_string(pass.pass)},
                      {"backend", pass.plan.backend},
                      {"kernel", pass.plan.kernel},
                      {"config", pass.plan.config},
                      {"tile_q", pass.plan.tile_q},
                      {"tile_kv", pass.plan.tile_kv},
                      {"tasks", pass.plan.tasks},
                      {"seconds", median(pass)},
                      {"runs", pass.seconds.size()},
                      {"flop", pass.flop},
                      {"gflops", per_second(pass.flop, pass)},
                      {"kv_bytes", pass.kv_bytes},
                      {"extra_bytes", pass.plan.workspace_bytes}});
  }
  ordered_json written = ordered_json::array();
  for (const auto& tensor : outputs.tensors()) {
    written.push_back({{"name", tensor.name}, {"dtype", tensor.dtype}, {"shape", tensor.shape}});
  }
  ordered_json out = {{"problem", to_string(report.problem)},
                      {"threads", report.threads},
                      {"device", report.device.empty() ? "host" : report.device},
                      {"inputs", inputs.used()},
                      {"unused", inputs.unused()},
                      {"passes", std::move(passes)},
                      {"outputs", std::move(written)},
                      {"output", options.output}};
  if (report.nonfinite) out["nonfinite_count"] = *report.nonfinite;
  if (options.check) {
    ordered_json checks = ordered_json::array();
    bool passed = true;
    for (const TensorComparison& check : report.checks) {
      checks.push_back(to_json(check));
      passed = passed && check.passed;
    }
    out["checks"] = std::move(checks);
    out["passed"] = passed;
  }
  // Infinite errors are null: JSON has no infinity.
  fmt::print("{}\n", out.dump(2, ' ', false, ordered_json::error_handler_t::replace));
}

void print_text(const RunReport& report, const RunOptions& options, const Inputs& inputs) {
  fmt::print("problem   {}\n", to_string(report.problem));
  fmt::print("inputs    {}\n", fmt::join(inputs.used(), ", "));
  if (!inputs.unused().empty()) {
    std::vector<std::string> names;
    for (const std::string& name : inputs.unused()) names.push_back(files::printable(name));
    fmt::print("unused    {}\n", fmt::join(names, ", "));
  }
  for (const PassReport& pass : report.passes) {
    fmt::print("{:<9} {} {}: {:.3f} ms", to_string(pass.pass), pass.plan.backend, pass.plan.kernel,
               median(pass) * 1e3);
    if (pass.seconds.size() > 1) fmt::print(" (median of {})", pass.seconds.size());
    fmt::print(", {:.1f} GFLOP/s", per_second(pass.flop, pass));
    if (pass.pass == Pass::decode) fmt::print(", {:.1f} GB/s", per_second(pass.kv_bytes, pass));
    fmt::print(", {} extra memory", readable_bytes(pass.plan.workspace_bytes));
    if (report.device == "webgpu") {
      fmt::print(", on webgpu, copies to it and back included\n");
    } else if (!report.device.empty()) {
      fmt::print(", on {}\n", report.device);
    } else {
      fmt::print(", {} thread{}\n", report.threads, report.threads == 1 ? "" : "s");
    }
    if (!pass.plan.config.empty()) fmt::print("          {}\n", pass.plan.config);
  }
  if (report.nonfinite) fmt::print("replaced  {} non-finite elements by 0\n", *report.nonfinite);
  for (const TensorComparison& check : report.checks) {
    if (!check.problem.empty()) {
      fmt::print("check     {:<5} {} against {}: {}\n", check.name, "FAILED", check.against,
                 check.problem);
      continue;
    }
    fmt::print("check     {:<5} {} against {}: max relative error {:.2e} (tolerance {:.0e})",
               check.name, check.passed ? "ok" : "FAILED", check.against, check.relative_error,
               check.tolerance);
    if (check.nan_rows > 0) {
      fmt::print(", {} of {} rows NaN in both", check.nan_rows, check.rows);
    }
    if (!check.passed) {
      fmt::print(", {} of {} elements, worst at {}", check.failed, check.elements, check.worst);
    }
    fmt::print("\n");
  }
  if (!options.output.empty()) fmt::print("written   {}\n", options.output);
}

// The caches after an append, as the files order their dimensions.
void add_caches(const Arguments& arguments, FileLayout layout,
                std::vector<files::FileTensor>& tensors) {
  for (const auto& [name, view] : {std::pair{"k", &arguments.k}, {"v", &arguments.v}}) {
    std::vector<std::int64_t> shape(view->shape.begin(), view->shape.begin() + view->rank);
    if (layout == FileLayout::bhsd) std::swap(shape[1], shape[2]);
    const auto bytes = files::tensor_bytes(shape, size_of(view->dtype));
    tensors.push_back({name,
                       files::file_type(view->dtype),
                       std::move(shape),
                       {static_cast<const std::byte*>(view->address()), bytes.value_or(0)}});
  }
}

InputOptions with_wanted(const RunOptions& options) {
  InputOptions input = options.input;
  input.dtype_out = parse_problem(options.problem.words()).dtype_out;
  input.wanted = {When::always};
  if (options.decode) input.wanted.insert(When::decode);
  if (options.backward) input.wanted.insert(When::backward);
  if (options.saved_forward) input.wanted.insert(When::saved_forward);
  return input;
}

}  // namespace

int run(const RunOptions& options) {
  check_flags(options);
  Inputs inputs(with_wanted(options));
  ProblemFlags flags = options.problem;
  apply(options.numbers, inputs.arguments, flags);
  RunReport report;
  report.problem = problem_of(inputs.arguments, flags);
  const Problem& problem = report.problem;
  if (options.backward && !inputs.arguments.dout.given()) {
    throw BadInput("--backward needs the gradient of o: a tensor do in the file, or --do FILE.npy");
  }
  if (options.backward && !problem.lse && !options.saved_forward) {
    throw BadInput("--backward needs lse: leave out --no-lse");
  }
  if (problem.accumulate && options.repeat > 1) {
    throw BadInput("--accumulate with --repeat would add more than once");
  }

  check_layout(options.input, inputs);
  check_lengths(problem, inputs.arguments);
  check_starts(options, problem);
  check_output(options, problem);

  const harness::Place place = harness::place_of(options.device, options.backend);
  ContextOptions context_options;
  context_options.backend = harness::backend_for(place, options.backend);
  context_options.threads = options.threads;
  Context context(context_options);
  report.threads = context.threads();
  std::unique_ptr<harness::DeviceQueue> queue;
  if (place.device == Device::cuda) queue = std::make_unique<harness::DeviceQueue>(place.ordinal);
  const auto current = queue ? queue->current() : nullptr;
  if (place.device != Device::host) report.device = to_string(place);

  std::int32_t nonfinite = 0;
  Arguments arguments =
      problem.len_new > 0 && options.check ? inputs.with_own_cache() : inputs.arguments;
  if (problem.nonfinite_zero) {
    arguments.nonfinite_count = TensorView::contiguous(&nonfinite, DType::i32, {1});
  }
  Outputs outputs;
  for (const Pass pass : passes_of(options)) {
    outputs.make(pass, problem, DType::none, options.input.layout, inputs, arguments);
    report.passes.push_back(timed(context, pass, problem, arguments, options, queue.get()));
  }
  if (problem.nonfinite_zero) report.nonfinite = nonfinite;
  if (options.check) report.checks = verify(options, problem, inputs, arguments, outputs);
  if (!options.output.empty()) {
    auto tensors = outputs.tensors();
    if (problem.len_new > 0) add_caches(arguments, options.input.layout, tensors);
    write_outputs(options.output, tensors,
                  {{"layout", to_string(options.input.layout)}, {"problem", to_string(problem)}});
  }
  if (options.json) {
    print_json(report, options, inputs, outputs);
  } else {
    print_text(report, options, inputs);
  }
  const bool passed = std::all_of(report.checks.begin(), report.checks.end(),
                                  [](const TensorComparison& check) { return check.passed; });
  return passed ? kOk : kCheckFailed;
}

}  // namespace attn::cli
