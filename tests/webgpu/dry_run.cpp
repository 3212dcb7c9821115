// Calls without a device; see dry_run.hpp.
#include "dry_run.hpp"

#include <algorithm>
#include <iterator>
#include <span>

#include "harness/values.hpp"
#include "webgpu/host/run.hpp"

namespace attn::webgpu::test {
namespace {

// Work takes a buffer's handle for its name alone.
WGPUBuffer handle_of(std::size_t number) {
  return reinterpret_cast<WGPUBuffer>(number + 1);  // NOLINT(performance-no-int-to-ptr)
}

DryRun::Part part_of(const Bound& bound) {
  return {reinterpret_cast<std::uintptr_t>(bound.buffer) - 1, bound.offset, bound.size};
}

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
  facts.max_grid = 65535;
  return facts;
}

DeviceFacts with_subgroups(DeviceFacts facts) {
  facts.has_subgroups = true;
  facts.subgroup_size = 32;
  facts.subgroup_linear = true;
  return facts;
}

void DryRun::add(harness::TensorSet& tensors) {
  tensors.each_storage([&](harness::Storage& storage) { add(storage); });
}

// Includes guards and gaps. begin() is at a multiple of 256 bytes, so that the dispatches do not
// depend on the address of the host's memory.
void DryRun::add(harness::Storage& storage) {
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

DryRun::Part DryRun::part_of(const TensorView& tensor) const {
  const auto* address = static_cast<const std::byte*>(tensor.address());
  const auto& [begin, number] = *std::prev(begins_.upper_bound(address));
  return {number, static_cast<std::uint64_t>(address - begin), 0};
}

TensorView DryRun::moved(const TensorView& tensor) const {
  TensorView there = tensor;
  if (!tensor.given()) return there;
  there.device = attn::Device::webgpu;
  there.data = nullptr;
  there.offset_bytes = 0;
  if (harness::num_elements(tensor) == 0) return there;
  const Part part = part_of(tensor);
  there.data = handle_of(part.buffer);
  there.offset_bytes = static_cast<std::int64_t>(part.offset);
  return there;
}

std::vector<DryRun::Part> DryRun::bound(std::size_t step) const {
  const std::size_t first = tensors_.size();
  const ScratchBuffers scratch{{handle_of(first), 0, 0},
                               {handle_of(first + 1), 0, 0},
                               {handle_of(first + 2), 0, 0},
                               {handle_of(first + 3), 0, 0}};
  const Dispatch& it = work.dispatches[step];
  std::vector<Part> parts{test::part_of(parameters_at(step, scratch))};
  for (std::size_t n = 0; n < static_cast<std::size_t>(it.spec.num_bindings); ++n) {
    parts.push_back(test::part_of(placed(work, it, it.operands[n], scratch)));
  }
  return parts;
}

std::vector<std::uint64_t> DryRun::sizes() const {
  std::vector<std::uint64_t> sizes;
  for (const auto& bytes : tensors_) sizes.push_back(bytes.size());
  const Needs needs = needs_of(work);
  for (const auto bytes : {needs.info, needs.prepared, needs.staged, needs.parameters}) {
    sizes.push_back(static_cast<std::uint64_t>(bytes));
  }
  return sizes;
}

}  // namespace attn::webgpu::test
