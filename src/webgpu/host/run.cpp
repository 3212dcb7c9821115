// Implements run.hpp.
#include "webgpu/host/run.hpp"

#include <algorithm>
#include <utility>

#include "webgpu/host/buffers.hpp"

namespace attn::webgpu {
namespace {

constexpr std::uint64_t kSpareBytes = 512;  // for two absent outputs
constexpr WGPUBufferUsage kParametersUsage = kUniformUsage | WGPUBufferUsage_Storage;

std::uint64_t slices_bytes(const Work& work) {
  return work.dispatches.size() * kParameterBytes;
}

bool reads(const Dispatch& dispatch, Memory memory) {
  for (std::size_t n = 0; n < static_cast<std::size_t>(dispatch.spec.num_bindings); ++n) {
    if (dispatch.spec.bindings[n] == Access::read && dispatch.operands[n].memory == memory)
      return true;
  }
  return false;
}

}  // namespace

// An absent output is placed after the used part of a scratch buffer that the dispatch does not
// read.
Bound placed(const Work& work, const Dispatch& dispatch, const Operand& operand,
             const ScratchBuffers& scratch) {
  const auto in = [&](const Bound& whole, std::uint64_t at) {
    return Bound{whole.buffer, whole.offset + at + operand.offset, operand.size};
  };
  switch (operand.memory) {
    case Memory::info: return in(scratch.info, 0);
    case Memory::prepared: return in(scratch.prepared, 0);
    case Memory::staged: return in(scratch.staged, 0);
    case Memory::constants: return in(scratch.parameters, slices_bytes(work));
    case Memory::spare:
      return reads(dispatch, Memory::staged) ? in(scratch.prepared, work.prepared_bytes)
                                             : in(scratch.staged, work.staged_bytes);
    case Memory::tensor: break;
  }
  return {static_cast<WGPUBuffer>(operand.buffer), operand.offset, operand.size};
}

Bound parameters_at(std::size_t dispatch, const ScratchBuffers& scratch) {
  return {scratch.parameters.buffer, scratch.parameters.offset + dispatch * kParameterBytes,
          kParameterBytes};
}

Needs needs_of(const Work& work) {
  return {
      .info = work.info_bytes,
      .prepared = work.prepared_bytes + kSpareBytes,
      .staged = work.staged_bytes + kSpareBytes,
      .parameters = slices_bytes(work) + std::max<std::size_t>(work.constants.size(), kSpareBytes)};
}

core::Status resolve(Device& device, const Work& work, const ScratchBuffers& scratch,
                     std::vector<BoundDispatch>& bound) {
  bound.clear();
  bound.reserve(work.dispatches.size());
  for (const Dispatch& dispatch : work.dispatches) {
    BoundDispatch& to = bound.emplace_back();
    core::Status status = device.pipelines().get(dispatch.spec, to.pipeline);
    if (!status.ok()) return status;
    for (std::size_t n = 0; n < static_cast<std::size_t>(dispatch.spec.num_bindings); ++n) {
      to.bound[n] = placed(work, dispatch, dispatch.operands[n], scratch);
    }
    to.parameters = parameters_at(bound.size() - 1, scratch);
    to.grid = dispatch.grid;
  }
  return {};
}

std::vector<std::byte> parameters_of(const Work& work) {
  std::vector<std::byte> bytes;
  for (const Dispatch& dispatch : work.dispatches) {
    bytes.insert(bytes.end(), dispatch.parameters.begin(), dispatch.parameters.end());
  }
  bytes.insert(bytes.end(), work.constants.begin(), work.constants.end());
  return bytes;
}

std::vector<std::size_t> submission_sizes(const Work& work, const DeviceFacts& facts) {
  std::vector<std::size_t> sizes;
  double flops = 0.0;
  for (const Dispatch& dispatch : work.dispatches) {
    if (sizes.empty() || flops + dispatch.flops > facts.submission_flops) {
      sizes.push_back(0);
      flops = 0.0;
    }
    ++sizes.back();
    flops += dispatch.flops;
  }
  return sizes;
}

core::Status run(Device& device, const Work& work) {
  const Needs needs = needs_of(work);
  std::array<Buffer, 4> buffers;
  ScratchBuffers scratch;
  const auto take = [&](std::size_t n, std::uint64_t bytes, WGPUBufferUsage usage, Bound& bound) {
    if (bytes == 0) return core::Status{};
    core::Status status = device.pool().take(bytes, usage, buffers[n]);
    bound = {buffers[n].handle(), 0, buffers[n].size()};
    return status;
  };
  core::Status status = take(0, needs.info, kStorageUsage, scratch.info);
  if (status.ok()) status = take(1, needs.prepared, kStorageUsage, scratch.prepared);
  if (status.ok()) status = take(2, needs.staged, kStorageUsage, scratch.staged);
  if (status.ok()) status = take(3, needs.parameters, kParametersUsage, scratch.parameters);
  if (!status.ok() || work.dispatches.empty()) return status;
  std::vector<BoundDispatch> dispatches;
  status = resolve(device, work, scratch, dispatches);
  if (status.ok()) {
    status = upload(device, scratch.parameters.buffer, 0, parameters_of(work));
  }
  std::size_t at = 0;
  for (const std::size_t count : submission_sizes(work, device.facts())) {
    if (!status.ok()) break;
    status = submit(device, std::span(dispatches).subspan(at, count));
    at += count;
  }
  return status;
}

}  // namespace attn::webgpu
