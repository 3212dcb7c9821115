// The probe of subgroups: their size, and whether lanes follow local indices. Adapters don't say
// (wgpu-native tells sizes 0 to 0), or say wrong.
#include <cstring>
#include <vector>

#include "webgpu/host/buffers.hpp"
#include "webgpu/host/dispatch.hpp"

namespace attn::webgpu {
namespace {

constexpr std::uint32_t kThreads = 128;  // of a workgroup, as probe.wgsl says
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
  Dispatch dispatch;
  dispatch.pipeline = &pipeline;
  dispatch.bound[0] = {words.handle(), 0, bytes};
  dispatch.parameters = {uniform.handle(), 0, sizeof(parameters)};
  dispatch.grid = {kGroups, 1, 1};
  status = submit(device, {&dispatch, 1});
  if (!status.ok()) return status;
  seen.resize(kThreads * kGroups);
  return download(device, words.handle(), 0, std::as_writable_bytes(std::span(seen)));
}

}  // namespace

void Device::probe_subgroups() {
  const Pipeline* pipeline = nullptr;
  core::Status status = pipelines_->get(probe_spec(), pipeline);
  if (!status.ok()) {  // a provider of another mind about the line than those we know
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
