// Implements check.hpp.
#include "check.hpp"

#include <algorithm>
#include <cmath>
#include <memory>

#include "compare.hpp"
#include "inputs.hpp"
#include "mirror.hpp"
#include "naive.hpp"
#include "naive_operands.hpp"
#include "reference/reference.hpp"
#include "values.hpp"

namespace attn::harness {
namespace {

void require(const std::string& problem) {
  if (!problem.empty()) throw Error(ErrorCode::internal, problem);
}

void call(Context& context, const Case& c, const Arguments& arguments) {
  switch (c.pass) {
    case Pass::forward: attn::forward(context, c.problem, arguments); break;
    case Pass::backward: attn::backward(context, c.problem, arguments); break;
    case Pass::decode: attn::decode(context, c.problem, arguments); break;
  }
}

std::string call_reference(const Case& c, const Arguments& arguments) {
  switch (c.pass) {
    case Pass::forward: return reference::forward(c.problem, arguments);
    case Pass::backward: return reference::backward(c.problem, arguments);
    case Pass::decode: return reference::decode(c.problem, arguments);
  }
  return "no such pass";
}

// The inputs and outputs of one evaluation of the case.
struct Run {
  Inputs inputs;
  OutputSet outputs;
  std::unique_ptr<Storage> workspace;

  Run(const Case& c, DType dtype) : inputs(c), outputs(c, dtype) {}

  void give_workspace(std::int64_t bytes) {
    workspace = std::make_unique<Storage>(bytes);
    TensorView whole = shaped(DType::u8, {bytes});
    whole.data = workspace->begin();
    workspace->seal({whole});
    inputs.arguments.workspace = workspace->begin();
    inputs.arguments.workspace_size = bytes;
  }

  void seal(const Case& c) {
    std::vector<TensorView> writable;
    if (c.problem.len_new > 0) writable = {inputs.arguments.k, inputs.arguments.v};
    if (c.problem.nonfinite_zero) writable.push_back(inputs.arguments.nonfinite_count);
    inputs.tensors.seal(writable);
    writable.clear();
    for (const auto& [name, view] : outputs.views) writable.push_back(view);
    outputs.tensors.seal(writable);
    outputs.give(inputs.arguments);
  }

  [[nodiscard]] std::string changed() const {
    std::string what = outputs.tensors.changed();
    if (what.empty()) what = inputs.tensors.changed();
    if (what.empty() && workspace) {
      what = workspace->changed();
      if (!what.empty()) what = "workspace: outside of it, " + what;
    }
    return what;
  }

  // The call under test.
  void execute(Context& context, const Case& c, DeviceQueue* device) {
    if (device == nullptr) return call(context, c, inputs.arguments);
    Mirror mirror(*device);
    inputs.tensors.each_storage([&](Storage& storage) { mirror.add(storage); });
    outputs.tensors.each_storage([&](Storage& storage) { mirror.add(storage); });
    mirror.add(*workspace, true);
    call(context, c, mirror.arguments(c.pass, c.problem, inputs.arguments));
    mirror.download();
  }
};

// The results of the reference and of the naive evaluation for an output of this type.
Comparands comparands(const Case& c, const std::string& name, DType dtype,
                      const TensorView& expected, const NaiveOutput& naive, DType operands) {
  Comparands x;
  x.name = name;
  x.shape.assign(expected.shape.begin(), expected.shape.begin() + expected.rank);
  x.dtype = dtype;
  x.in_double = c.problem.dtype == DType::f64;
  x.expected = read_all(expected);
  x.naive = naive.values;
  x.magnitude = naive.magnitude;
  x.operands = operands;
  x.deviation = naive.deviation;
  x.flushed = naive.flushed;
  x.has_planted = c.planted != Planted::none;
  return x;
}

// The caches after an append: existing rows must keep their bits. With rope, an appended key may
// differ by one rounding.
std::string judge_cache(const Case& c, const char* name, const TensorView& actual,
                        const TensorView& expected) {
  const std::vector<double> a = read_all(actual);
  const std::vector<double> e = read_all(expected);
  const bool rotated = c.problem.rope != Rope::none && name == std::string("k");
  const DType working = actual.dtype == DType::f64 ? DType::f64 : DType::f32;
  const auto dim = static_cast<std::size_t>(actual.shape[3]);
  for (std::size_t n = 0; n < a.size(); ++n) {
    if (std::isnan(a[n]) && std::isnan(e[n])) continue;
    double largest = 0.0;  // over the row, because a rotation mixes its elements
    for (std::size_t d = 0; d < dim; ++d) {
      largest = std::max(largest, std::fabs(e[n / dim * dim + d]));
    }
    const double slack = rotated ? 2.0 * unit_roundoff(actual.dtype) * std::fabs(e[n]) +
                                       4.0 * unit_roundoff(working) * largest
                                 : 0.0;
    if (!(std::fabs(a[n] - e[n]) <= slack)) {
      return std::string("cache ") + name + ": element " + std::to_string(n) + " is " +
             std::to_string(a[n]) + ", expected " + std::to_string(e[n]);
    }
  }
  return {};
}

std::string judge_count(const Run& run, const Run& reference) {
  const double actual = load(run.inputs.arguments.nonfinite_count, 0);
  const double expected = load(reference.inputs.arguments.nonfinite_count, 0);
  if (actual == expected) return {};
  return "nonfinite_count is " + std::to_string(actual) + ", expected " + std::to_string(expected);
}

// The forward's results that a backward reads, computed by the reference.
struct Forward {
  std::vector<double> o, lse;
};

Forward forward_of(const Case& c) {
  Case forward = c;
  forward.pass = Pass::forward;
  forward.problem.lse = true;
  Inputs inputs(forward);
  OutputSet outputs(forward, DType::f64);
  outputs.give(inputs.arguments);
  require(reference::forward(forward.problem, inputs.arguments));
  return {read_all(*outputs.find("o")), read_all(*outputs.find("lse"))};
}

// Repeating the call must give the same bits.
std::string judge_repeat(Context& context, const Case& c, const Forward& forward, const Run& first,
                         std::int64_t bytes, DeviceQueue* device) {
  Run again(c, DType::none);
  if (c.pass == Pass::backward) again.inputs.give_forward(forward.o, forward.lse);
  again.give_workspace(bytes);
  again.seal(c);
  again.execute(context, c, device);
  for (const auto& [name, view] : first.outputs.views) {
    const std::vector<double> a = read_all(view);
    const std::vector<double> b = read_all(*again.outputs.find(name));
    for (std::size_t n = 0; n < a.size(); ++n) {
      if (a[n] == b[n] || (std::isnan(a[n]) && std::isnan(b[n]))) continue;
      return name + ": element " + std::to_string(n) + " differs from one run to the next";
    }
  }
  return {};
}

// Extracts one backend's reason from "cuda: why; webgpu: why; ...".
std::string reason_of(Context& context, const std::string& reasons, const std::string& name) {
  const std::size_t begin = reasons.find(name + ": ");
  if (name.empty() || begin == std::string::npos) return reasons;
  std::size_t end = reasons.size();
  for (const BackendInfo& other : backends(context)) {
    end = std::min(end, reasons.find("; " + other.name + ": ", begin));
  }
  return reasons.substr(begin, end - begin);
}

void check(Context& context, const Case& c, DeviceQueue* device, const std::string& asked,
           CheckReport& report) {
  const auto current = device != nullptr ? device->current() : nullptr;
  const Device where = device != nullptr ? Device::cuda : Device::host;
  const Verdict verdict = attn::supports(context, c.pass, c.problem, where);
  report.backend = verdict.backend;
  if (!verdict.supported) {
    report.skipped = true;
    report.message = reason_of(context, verdict.reason, device != nullptr ? "cuda" : asked);
    return;
  }
  const PlanSummary plan = attn::plan(context, c.pass, c.problem, where);
  report.backend = plan.backend;
  report.kernel = plan.kernel;
  const auto tiles = [](std::int64_t len, std::int64_t tile) {
    return tile > 0 ? (len + tile - 1) / tile : 1;
  };
  report.q_tiles = tiles(c.problem.len_q, plan.tile_q);
  report.kv_tiles = tiles(c.problem.len_kv, plan.tile_kv);
  const std::int64_t bytes = attn::workspace_bytes(context, c.pass, c.problem, where);
  if (bytes != plan.workspace_bytes) {
    report.message = "workspace_bytes() says " + std::to_string(bytes) + ", plan() " +
                     std::to_string(plan.workspace_bytes);
    return;
  }

  Run expected(c, DType::f64);
  Run run(c, DType::none);
  Forward forward;
  if (c.pass == Pass::backward) {
    forward = forward_of(c);
    expected.inputs.give_forward(forward.o, forward.lse);
    run.inputs.give_forward(forward.o, forward.lse);
  }
  const DType operands = operand_type(c.problem, where, plan);
  const std::vector<NaiveOutput> naives = naive(c, expected.inputs, expected.outputs, operands);
  expected.seal(c);
  require(call_reference(c, expected.inputs.arguments));
  run.give_workspace(bytes);
  run.seal(c);
  run.execute(context, c, device);

  std::string message = run.changed();
  for (std::size_t n = 0; n < naives.size(); ++n) {
    const auto& [name, view] = run.outputs.views[n];
    Comparands x =
        comparands(c, name, view.dtype, expected.outputs.views[n].second, naives[n], operands);
    x.actual = read_all(view);
    const Comparison result = compare(x);
    report.worst_ratio = std::max(report.worst_ratio, result.worst_ratio);
    report.worst_error = std::max(report.worst_error, result.worst_error);
    if (message.empty() && !result.passed) message = result.message;
  }
  if (message.empty() && c.problem.len_new > 0) {
    const Arguments& a = run.inputs.arguments;
    const Arguments& e = expected.inputs.arguments;
    message = judge_cache(c, "k", a.k, e.k);
    if (message.empty()) message = judge_cache(c, "v", a.v, e.v);
  }
  if (message.empty() && c.problem.nonfinite_zero) message = judge_count(run, expected);
  if (message.empty() && c.problem.deterministic) {
    message = judge_repeat(context, c, forward, run, bytes, device);
  }
  report.message = message;
  report.passed = message.empty();
}

bool is_lost(DeviceQueue* device) {
  try {
    if (device != nullptr) device->synchronize();
    return false;
  } catch (const Error&) {
    return true;
  }
}

}  // namespace

void give_forward(const Case& c, Inputs& to) {
  const Forward forward = forward_of(c);
  to.give_forward(forward.o, forward.lse);
}

std::vector<Expected> expected_of(const Case& c) {
  Run run(c, DType::f64);
  if (c.pass == Pass::backward) give_forward(c, run.inputs);
  const std::vector<NaiveOutput> naives = naive(c, run.inputs, run.outputs);
  run.seal(c);
  require(call_reference(c, run.inputs.arguments));
  std::vector<Expected> outputs;
  for (std::size_t n = 0; n < naives.size(); ++n) {
    const auto& [name, view] = run.outputs.views[n];
    const DType dtype = output_type(c.problem, name);
    const Comparands x = comparands(c, name, dtype, view, naives[n], DType::none);
    outputs.push_back({name, x.expected, row_tolerances(x)});
  }
  return outputs;
}

CheckReport run_case(Context& context, const Case& c, DeviceQueue* device,
                     const std::string& asked) {
  CheckReport report;
  try {
    check(context, c, device, asked, report);
  } catch (const std::exception& error) {
    report.message = error.what();
    report.device_lost = is_lost(device);
  }
  return report;
}

}  // namespace attn::harness
