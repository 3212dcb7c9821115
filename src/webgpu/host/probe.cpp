// Probes: dispatches that measure what adapters don't report or report wrongly (wgpu-native reports
// subgroup sizes of 0 to 0). These are the size of subgroups, whether lanes follow local indices,
// and the speed of the device.
#include <algorithm>
#include <chrono>
#include <vector>

#include "webgpu/host/buffers.hpp"
#include "webgpu/host/dispatch.hpp"
#include "webgpu/host/limits.hpp"
#include "webgpu/host/pipelines.hpp"

namespace attn::webgpu {
namespace {

constexpr std::uint32_t kThreads = 128;  // per workgroup, as in probe.wgsl
constexpr std::uint32_t kGroups = 4;

struct Seen {
  std::uint32_t size, lane, first, last;
};

KernelSpec probe_spec() {
  KernelSpec spec;
  spec.source = "probe";
  spec.entry = "probe";
  spec.bindings[0] = Access::write;
  spec.num_bindings = 1;
  spec.subgroups = true;
  return spec;
}

core::Status run_probe(Device& device, const Pipeline& pipeline, std::vector<Seen>& seen) {
  const std::array<std::uint32_t, 4> parameters{kThreads * kGroups};
  const std::uint64_t bytes = kThreads * kGroups * sizeof(Seen);
  Buffer words;
  Buffer uniform;
  core::Status status = Buffer::create(device, bytes, kStorageUsage, words);
  if (status.ok()) status = Buffer::create(device, sizeof(parameters), kUniformUsage, uniform);
  if (status.ok()) {
    status = upload(device, uniform.handle(), 0, std::as_bytes(std::span(parameters)));
  }
  if (!status.ok()) return status;
  BoundDispatch dispatch;
  dispatch.pipeline = &pipeline;
  dispatch.bound[0] = {words.handle(), 0, bytes};
  dispatch.parameters = {uniform.handle(), 0, sizeof(parameters)};
  dispatch.grid = {kGroups, 1, 1};
  status = submit(device, {&dispatch, 1});
  if (!status.ok()) return status;
  seen.resize(kThreads * kGroups);
  return download(device, words.handle(), 0, std::as_writable_bytes(std::span(seen)));
}

constexpr std::uint32_t kRateThreads = 256;  // per workgroup, as in rate.wgsl
constexpr std::uint32_t kRateGroups = 4096;  // several waves on the largest devices
constexpr double kStepFlops = 128.0;         // per thread and step
constexpr double kLongEnough = 1e-3;         // seconds; the cost of a submission is then small
constexpr std::uint32_t kMostSteps = 8192;

// Operations per second; 0 if it fails. Each attempt takes 8 times the steps of the previous one,
// until two attempts were long enough: one alone may include the driver's compilation or a low
// clock rate.
double measured_rate(Device& device, const Pipeline& pipeline) {
  Buffer words;
  Buffer uniform;
  core::Status status = Buffer::create(device, 16, kStorageUsage, words);
  if (status.ok()) status = Buffer::create(device, 16, kUniformUsage, uniform);
  double rate = 0.0;
  int long_ones = 0;
  for (std::uint32_t steps = 2; status.ok() && long_ones < 2 && steps <= kMostSteps; steps *= 8) {
    const std::array<std::uint32_t, 4> parameters{steps};
    status = upload(device, uniform.handle(), 0, std::as_bytes(std::span(parameters)));
    if (status.ok()) status = wait(device);
    BoundDispatch dispatch;
    dispatch.pipeline = &pipeline;
    dispatch.bound[0] = {words.handle(), 0, 16};
    dispatch.parameters = {uniform.handle(), 0, 16};
    dispatch.grid = {kRateGroups, 1, 1};
    const auto start = std::chrono::steady_clock::now();
    if (status.ok()) status = submit(device, {&dispatch, 1});
    if (status.ok()) status = wait(device);
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (seconds >= kLongEnough) ++long_ones;
    if (status.ok()) {
      rate = std::max(rate, kStepFlops * kRateThreads * kRateGroups * steps / seconds);
    }
  }
  return status.ok() ? rate : 0.0;
}

}  // namespace

// Uses the host's clock, because not every device has timestamps. Other load makes the result
// lower, which is on the safe side.
double Device::measure_rate() {
  KernelSpec spec;
  spec.source = "rate";
  spec.entry = "rate";
  spec.bindings[0] = Access::write;
  spec.num_bindings = 1;
  const Pipeline* pipeline = nullptr;
  return pipelines_->get(spec, pipeline).ok() ? measured_rate(*this, *pipeline) : 0.0;
}

void Device::probe_subgroups() {
  const Pipeline* pipeline = nullptr;
  core::Status status = pipelines_->get(probe_spec(), pipeline);
  if (!status.ok()) {  // an unknown provider may need the other form of the directive
    pipelines_->flip_enable_line();
    status = pipelines_->get(probe_spec(), pipeline);
  }
  std::vector<Seen> seen;
  if (status.ok()) status = run_probe(*this, *pipeline, seen);
  if (!status.ok() || seen.empty()) {
    facts_.has_subgroups = false;
    return;
  }
  const std::uint32_t size = seen[0].size;
  bool linear = size > 0;
  bool uniform = size > 0;
  for (std::uint32_t i = 0; i < seen.size(); ++i) {
    const std::uint32_t local = i % kThreads;
    uniform = uniform && seen[i].size == size;
    linear = linear && uniform && seen[i].lane == local % size &&
             seen[i].first == local - seen[i].lane &&
             seen[i].last == std::min(seen[i].first + size, kThreads) - 1;
  }
  facts_.subgroup_size = uniform ? size : 0;
  facts_.subgroup_linear = linear;
}

}  // namespace attn::webgpu
