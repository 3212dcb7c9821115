// Implements pipelines.hpp.
#include "webgpu/host/pipelines.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdio>
#include <mutex>
#include <thread>
#include <vector>

namespace attn::webgpu {
namespace {

constexpr std::string_view kEnableLine = "// enable subgroups\n";

std::string file_of(std::string_view source) {
  return std::string(source) + ".wgsl";
}

std::string number_text(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%g", value);
  return text;
}

// Runs job(0) ... job(count - 1) on up to `threads` threads.
template <class Job>
void run_jobs(std::size_t count, int threads, Job&& job) {
  std::atomic<std::size_t> next = 0;
  const auto work = [&] {
    for (std::size_t i = next++; i < count; i = next++) job(i);
  };
  std::vector<std::jthread> workers;
  for (std::size_t i = 1; i < std::min<std::size_t>(count, static_cast<std::size_t>(threads));
       ++i) {
    workers.emplace_back(work);
  }
  work();
}

}  // namespace

bool operator==(const KernelSpec& a, const KernelSpec& b) {
  const std::string_view source_a(a.source);
  const std::string_view entry_a(a.entry);
  if (source_a != b.source || entry_a != b.entry || a.subgroups != b.subgroups ||
      a.num_bindings != b.num_bindings || a.num_constants != b.num_constants) {
    return false;
  }
  return std::equal(a.bindings.begin(), a.bindings.begin() + a.num_bindings, b.bindings.begin()) &&
         std::equal(a.constants.begin(), a.constants.begin() + a.num_constants, b.constants.begin(),
                    [](const Constant& x, const Constant& y) {
                      return std::string_view(x.name) == y.name && x.value == y.value;
                    });
}

std::size_t hash_value(const KernelSpec& spec) {
  std::uint64_t hash = 0xcbf29ce484222325;
  const auto add = [&](std::uint64_t value) { hash = (hash ^ value) * 0x100000001b3; };
  const auto add_text = [&](std::string_view text) {
    for (const char c : text) add(static_cast<unsigned char>(c));
  };
  add_text(spec.source);
  add_text(spec.entry);
  for (int i = 0; i < spec.num_constants; ++i) {
    const Constant& constant = spec.constants[static_cast<std::size_t>(i)];
    add_text(constant.name);
    const auto bits = std::bit_cast<std::uint64_t>(constant.value);
    add(bits ^ bits >> 32);
  }
  return static_cast<std::size_t>(hash ^ hash >> 29);
}

std::string to_string(const KernelSpec& spec) {
  std::string text = file_of(spec.source) + " " + spec.entry;
  for (int i = 0; i < spec.num_constants; ++i) {
    const Constant& constant = spec.constants[static_cast<std::size_t>(i)];
    text.append(i == 0 ? " (" : ", ").append(constant.name).append("=");
    text.append(number_text(constant.value));
  }
  return spec.num_constants > 0 ? text + ")" : text;
}

Pipelines::Pipelines(Device& device, std::span<const Source> sources)
    : device_(device), sources_(sources), enable_line_(!device.provider().native()) {}

Pipelines::~Pipelines() {
  for (const auto& [spec, pipeline] : pipelines_) release(*pipeline);
  for (const auto& [name, module] : modules_) device_.api().wgpuShaderModuleRelease(module);
}

void Pipelines::release(const Pipeline& pipeline) const {
  const ProviderApi& api = device_.api();
  if (pipeline.handle != nullptr) api.wgpuComputePipelineRelease(pipeline.handle);
  if (pipeline.layout != nullptr) api.wgpuBindGroupLayoutRelease(pipeline.layout);
}

const Source* Pipelines::source_of(std::string_view name) const {
  const auto find = [&](std::string_view wanted) {
    const auto found = std::find_if(sources_.begin(), sources_.end(),
                                    [&](const Source& source) { return source.name == wanted; });
    return found == sources_.end() ? nullptr : &*found;
  };
  const Source* unrolled =
      device_.facts().unrolls ? find(std::string(kUnrolled) + std::string(name)) : nullptr;
  return unrolled != nullptr ? unrolled : find(name);
}

core::Status Pipelines::check(const KernelSpec& spec) const {
  const DeviceFacts& facts = device_.facts();
  const auto internal = [&](std::string_view text) {
    return core::Status{ErrorCode::internal,
                        "webgpu: " + to_string(spec) + ": " + std::string(text)};
  };
  if (source_of(spec.source) == nullptr) return internal("no such source");
  if (spec.num_bindings < 0 || spec.num_bindings > kMaxBindings || spec.num_constants < 0 ||
      spec.num_constants > kMaxConstants) {
    return internal("too many bindings or constants");
  }
  if (static_cast<std::uint32_t>(spec.num_bindings) > facts.max_storage_buffers) {
    return core::Status::unsupported(
        "webgpu: " + to_string(spec) + " binds " + std::to_string(spec.num_bindings) +
        " storage buffers; " + facts.name + " takes " + std::to_string(facts.max_storage_buffers));
  }
  if (spec.subgroups && !facts.has_subgroups) {
    return core::Status::unsupported("webgpu: " + to_string(spec) + " uses subgroups, which " +
                                     facts.name + " lacks");
  }
  return {};
}

const Pipeline* Pipelines::find(const KernelSpec& spec) const {
  const std::shared_lock<std::shared_mutex> lock(mutex_);
  const auto found = pipelines_.find(spec);
  return found == pipelines_.end() ? nullptr : found->second.get();
}

WGPUShaderModule Pipelines::find_module(std::string_view source) const {
  const std::shared_lock<std::shared_mutex> lock(mutex_);
  const auto found = modules_.find(source);
  return found == modules_.end() ? nullptr : found->second;
}

// Another thread may have built the same pipeline meanwhile. Then that one is kept.
const Pipeline* Pipelines::keep(std::unique_ptr<Pipeline> pipeline) {
  const std::unique_lock<std::shared_mutex> lock(mutex_);
  const KernelSpec spec = pipeline->spec;
  const auto [place, is_new] = pipelines_.try_emplace(spec);
  if (is_new) {
    place->second = std::move(pipeline);
  } else {
    release(*pipeline);
  }
  return place->second.get();
}

WGPUShaderModule Pipelines::keep_module(std::string_view source, WGPUShaderModule module) {
  const std::unique_lock<std::shared_mutex> lock(mutex_);
  const auto [place, is_new] = modules_.try_emplace(source, module);
  if (!is_new) device_.api().wgpuShaderModuleRelease(module);
  return place->second;
}

WGPUShaderModule Pipelines::create_module(const Source& source) const {
  std::string text(source.text);
  if (enable_line_ && text.starts_with(kEnableLine)) {
    text.replace(0, kEnableLine.size(), "enable subgroups;\n");
  }
  const std::string label = file_of(source.name);
  WGPUShaderSourceWGSL wgsl = WGPU_SHADER_SOURCE_WGSL_INIT;
  wgsl.code = view_of(text);
  WGPUShaderModuleDescriptor descriptor = WGPU_SHADER_MODULE_DESCRIPTOR_INIT;
  descriptor.nextInChain = &wgsl.chain;
  descriptor.label = view_of(label);
  const ProviderApi& api = device_.api();
  // Runtime checks are off where they are not needed. All loops of our kernels terminate: a counter
  // in each loop made kernels a third slower and compilation ten times as slow (lavapipe, 2026-11).
  // All indices are in bounds. Those of workgroup and private arrays follow from the constants of a
  // tiling. Those of tensors follow from shapes and strides that were checked against the bound
  // ranges (dispatch.cpp). Values from device arrays (lengths, ranges, positions, pages, split
  // sizes) are clamped where they are read. The compiler's own bounds checks, a min() per index,
  // cost 5 to 13 % (H200, 2026-11). CPU devices keep them, so that tests without a GPU find an
  // index that is out of bounds.
  const WGPUShaderRuntimeChecks checks =
      device_.facts().checks ? WGPUShaderRuntimeChecks_BoundsChecks : WGPUShaderRuntimeChecks_None;
  return api.wgpuDeviceCreateShaderModuleTrusted != nullptr
             ? api.wgpuDeviceCreateShaderModuleTrusted(device_.handle(), &descriptor, checks)
             : api.wgpuDeviceCreateShaderModule(device_.handle(), &descriptor);
}

std::unique_ptr<Pipeline> Pipelines::create_pipeline(const KernelSpec& spec,
                                                     WGPUShaderModule module) const {
  const ProviderApi& api = device_.api();
  auto pipeline = std::make_unique<Pipeline>();
  pipeline->device = &device_;
  pipeline->spec = spec;

  std::array<WGPUBindGroupLayoutEntry, 1 + kMaxBindings> entries{};
  const auto num_entries = 1 + static_cast<std::size_t>(spec.num_bindings);
  for (std::size_t i = 0; i < num_entries; ++i) {
    entries[i] = WGPU_BIND_GROUP_LAYOUT_ENTRY_INIT;
    entries[i].binding = static_cast<std::uint32_t>(i);
    entries[i].visibility = WGPUShaderStage_Compute;
    entries[i].buffer.type = i == 0 ? WGPUBufferBindingType_Uniform
                             : spec.bindings[i - 1] == Access::read
                                 ? WGPUBufferBindingType_ReadOnlyStorage
                                 : WGPUBufferBindingType_Storage;
  }
  WGPUBindGroupLayoutDescriptor group = WGPU_BIND_GROUP_LAYOUT_DESCRIPTOR_INIT;
  group.entryCount = num_entries;
  group.entries = entries.data();
  pipeline->layout = api.wgpuDeviceCreateBindGroupLayout(device_.handle(), &group);
  WGPUPipelineLayoutDescriptor layout = WGPU_PIPELINE_LAYOUT_DESCRIPTOR_INIT;
  layout.bindGroupLayoutCount = 1;
  layout.bindGroupLayouts = &pipeline->layout;
  const WGPUPipelineLayout made = api.wgpuDeviceCreatePipelineLayout(device_.handle(), &layout);

  std::array<WGPUConstantEntry, kMaxConstants> constants{};
  for (std::size_t i = 0; i < static_cast<std::size_t>(spec.num_constants); ++i) {
    constants[i].key = view_of(spec.constants[i].name);
    constants[i].value = spec.constants[i].value;
  }
  const std::string label = to_string(spec);
  WGPUComputePipelineDescriptor descriptor = WGPU_COMPUTE_PIPELINE_DESCRIPTOR_INIT;
  descriptor.label = view_of(label);
  descriptor.layout = made;
  descriptor.compute.module = module;
  descriptor.compute.entryPoint = view_of(spec.entry);
  descriptor.compute.constantCount = static_cast<std::size_t>(spec.num_constants);
  descriptor.compute.constants = constants.data();
  pipeline->handle = api.wgpuDeviceCreateComputePipeline(device_.handle(), &descriptor);
  api.wgpuPipelineLayoutRelease(made);
  return pipeline;
}

core::Status Pipelines::get_module(const Source& source, WGPUShaderModule& module) {
  module = find_module(source.name);
  if (module != nullptr) return {};
  const std::string label = file_of(source.name);
  WGPUShaderModule made = nullptr;
  core::Status status =
      device_.scopes().run("compiling " + label, [&] { made = create_module(source); });
  if (status.ok()) {
    module = keep_module(source.name, made);
    return status;
  }
  if (made != nullptr) device_.api().wgpuShaderModuleRelease(made);
  constexpr std::string_view kPrefix = "webgpu: ";
  if (status.message.starts_with(kPrefix)) {
    status.message.insert(kPrefix.size(), shader_line(label, status.message));
  }
  return status;
}

core::Status Pipelines::get(const KernelSpec& spec, const Pipeline*& pipeline) {
  pipeline = find(spec);
  if (pipeline != nullptr) return {};
  core::Status status = check(spec);
  WGPUShaderModule module = nullptr;
  if (status.ok()) status = get_module(*source_of(spec.source), module);
  if (!status.ok()) return status;
  std::unique_ptr<Pipeline> made;
  status = device_.scopes().run("building " + to_string(spec),
                                [&] { made = create_pipeline(spec, module); });
  if (status.ok()) {
    pipeline = keep(std::move(made));
  } else if (made != nullptr) {
    release(*made);
  }
  return status;
}

// Compiles the sources in parallel in one error scope, so an error may be of any of them.
core::Status Pipelines::get_modules(std::span<const KernelSpec> missing, int threads) {
  std::vector<const Source*> wanted;
  for (const KernelSpec& spec : missing) {
    const Source* source = source_of(spec.source);
    if (find_module(source->name) == nullptr) wanted.push_back(source);
  }
  std::sort(wanted.begin(), wanted.end());
  wanted.erase(std::unique(wanted.begin(), wanted.end()), wanted.end());
  std::vector<WGPUShaderModule> made(wanted.size());
  core::Status status = device_.scopes().run("compiling", [&] {
    run_jobs(wanted.size(), threads, [&](std::size_t i) { made[i] = create_module(*wanted[i]); });
  });
  for (std::size_t i = 0; i < made.size(); ++i) {
    if (status.ok()) {
      keep_module(wanted[i]->name, made[i]);
    } else if (made[i] != nullptr) {
      device_.api().wgpuShaderModuleRelease(made[i]);
    }
  }
  return status;
}

core::Status Pipelines::get_pipelines(std::span<const KernelSpec> missing, int threads) {
  std::vector<std::unique_ptr<Pipeline>> made(missing.size());
  core::Status status = device_.scopes().run("building", [&] {
    run_jobs(missing.size(), threads, [&](std::size_t i) {
      made[i] = create_pipeline(missing[i], find_module(source_of(missing[i].source)->name));
    });
  });
  for (std::unique_ptr<Pipeline>& pipeline : made) {
    if (status.ok()) {
      keep(std::move(pipeline));
    } else if (pipeline != nullptr) {
      release(*pipeline);
    }
  }
  return status;
}

core::Status Pipelines::get_all(std::span<const KernelSpec> specs, int threads) {
  std::vector<KernelSpec> missing;
  for (const KernelSpec& spec : specs) {
    if (find(spec) != nullptr) continue;
    core::Status status = check(spec);
    if (!status.ok()) return status;
    if (std::find(missing.begin(), missing.end(), spec) == missing.end()) missing.push_back(spec);
  }
  if (threads > 1 && missing.size() > 1) {
    core::Status status = get_modules(missing, threads);
    if (status.ok()) status = get_pipelines(missing, threads);
    if (status.ok()) return status;
  }
  // Builds them one by one. After a failure above, this finds the one that fails.
  for (const KernelSpec& spec : missing) {
    const Pipeline* pipeline = nullptr;
    core::Status status = get(spec, pipeline);
    if (!status.ok()) return status;
  }
  return {};
}

}  // namespace attn::webgpu
