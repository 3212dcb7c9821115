// Cases as dispatches; see case_work.hpp.
#include "case_work.hpp"

#include <algorithm>
#include <attn/attn.hpp>
#include <unordered_set>

#include "cases/check.hpp"
#include "cases/values.hpp"
#include "core/signature.hpp"
#include "webgpu/host/attention.hpp"
#include "webgpu/host/plan.hpp"
#include "webgpu/host/run.hpp"

namespace attn::webgpu::test {
namespace {

// Work takes a buffer's handle for its name alone.
WGPUBuffer handle_of(std::size_t number) {
  return reinterpret_cast<WGPUBuffer>(number + 1);  // NOLINT(performance-no-int-to-ptr)
}

CaseWork::Part part_of(const Bound& bound) {
  return {reinterpret_cast<std::uintptr_t>(bound.buffer) - 1, bound.offset, bound.size};
}

struct HashSpec {
  std::size_t operator()(const KernelSpec& spec) const { return hash_value(spec); }
};

}  // namespace

DeviceFacts core_facts(std::uint32_t workgroup_bytes) {
  DeviceFacts facts;
  facts.name = "any device";
  facts.backend = "webgpu";
  facts.provider = ProviderKind::dawn;
  facts.max_buffer_bytes = 256 << 20;
  facts.max_storage_binding_bytes = 128 << 20;
  facts.max_uniform_binding_bytes = 65536;
  facts.max_storage_buffers = 8;
  facts.workgroup_bytes = workgroup_bytes;
  facts.max_threads = 256;
  facts.max_workgroup_size = {256, 256, 64};
  facts.max_grid = 65535;
  return facts;
}

CaseWork::CaseWork(const cases::Case& c, const DeviceFacts& facts)
    : inputs_(c), outputs_(c, DType::none) {
  const core::Capability capability = check_support(c.pass, c.problem, facts);
  if (!capability.supported) throw Error(ErrorCode::unsupported, capability.reason);
  if (c.pass == Pass::backward) cases::give_forward(c, inputs_);
  inputs_.tensors.each_storage([&](cases::Storage& storage) { add(storage); });
  outputs_.tensors.each_storage([&](cases::Storage& storage) { add(storage); });
  Arguments& a = inputs_.arguments;
  outputs_.give(a);
  Arguments there = a;
  for (const core::Slot& slot : core::slots_of(c.pass, c.problem)) {
    there.*slot.view = slot.use != core::Use::ignored ? moved(a.*slot.view) : TensorView{};
  }
  if (a.seed.device != nullptr) there.seed = *a.seed.device;
  if (a.offset.device != nullptr) there.offset = *a.offset.device;
  const core::Status status = make_work({c.pass, c.problem, there, facts}, work_);
  if (!status.ok()) throw Error(status.code, status.message);
}

// With its guards and gaps; begin() at a multiple of 256 bytes, so that what is made of the case
// does not depend on where the host's memory lies.
void CaseWork::add(cases::Storage& storage) {
  constexpr std::size_t kAlignment = 256;
  const std::span<std::byte> all = std::as_writable_bytes(storage.bytes());
  const auto front =
      static_cast<std::size_t>(reinterpret_cast<std::byte*>(storage.begin()) - all.data());
  const std::size_t skip = (kAlignment - front % kAlignment) % kAlignment;
  const std::size_t size = (skip + all.size() + kAlignment - 1) / kAlignment * kAlignment;
  std::vector<std::byte>& bytes = tensors_.emplace_back(size);
  std::ranges::copy(all, bytes.begin() + static_cast<std::ptrdiff_t>(skip));
  begins_[all.data() - skip] = tensors_.size() - 1;
}

CaseWork::Part CaseWork::part_of(const TensorView& tensor) const {
  const auto* address = static_cast<const std::byte*>(tensor.address());
  const auto& [begin, number] = *std::prev(begins_.upper_bound(address));
  return {number, static_cast<std::uint64_t>(address - begin), 0};
}

TensorView CaseWork::moved(const TensorView& tensor) const {
  TensorView there = tensor;
  there.device = attn::Device::webgpu;
  there.data = nullptr;
  there.offset_bytes = 0;
  if (!tensor.given() || cases::num_elements(tensor) == 0) return there;
  const Part part = part_of(tensor);
  there.data = handle_of(part.buffer);
  there.offset_bytes = static_cast<std::int64_t>(part.offset);
  return there;
}

std::vector<CaseWork::Part> CaseWork::bound(std::size_t step) const {
  const std::size_t first = tensors_.size();
  const ScratchBuffers scratch{{handle_of(first), 0, 0},
                               {handle_of(first + 1), 0, 0},
                               {handle_of(first + 2), 0, 0},
                               {handle_of(first + 3), 0, 0}};
  const Step& it = work_.steps[step];
  std::vector<Part> parts{test::part_of(parameters_at(step, scratch))};
  for (std::size_t n = 0; n < static_cast<std::size_t>(it.spec.num_bindings); ++n) {
    parts.push_back(test::part_of(placed(work_, it, it.operands[n], scratch)));
  }
  return parts;
}

std::vector<std::uint64_t> CaseWork::sizes() const {
  std::vector<std::uint64_t> sizes;
  for (const auto& bytes : tensors_) sizes.push_back(bytes.size());
  const Needs needs = needs_of(work_);
  for (const auto bytes : {needs.info, needs.prepared, needs.staged, needs.parameters}) {
    sizes.push_back(static_cast<std::uint64_t>(bytes));
  }
  return sizes;
}

std::vector<KernelSpec> kernels_of_list(const DeviceFacts& facts) {
  std::unordered_set<KernelSpec, HashSpec> kernels;
  for (const cases::Case& c : cases::case_list()) {
    if (!check_support(c.pass, c.problem, facts).supported) continue;
    Work work;
    if (!work_of_problem(c.pass, c.problem, facts, work).ok()) continue;
    for (const Step& step : work.steps) kernels.insert(step.spec);
  }
  std::vector<KernelSpec> sorted(kernels.begin(), kernels.end());
  std::ranges::sort(sorted, {}, [](const KernelSpec& spec) { return to_string(spec); });
  return sorted;
}

}  // namespace attn::webgpu::test
