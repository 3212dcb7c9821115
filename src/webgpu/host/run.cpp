// Running work; see run.hpp.
#include "webgpu/host/run.hpp"

#include <algorithm>
#include <utility>

#include "webgpu/host/buffers.hpp"

namespace attn::webgpu {
namespace {

constexpr std::uint64_t kSpareBytes = 512;  // two outputs that are not asked for
constexpr WGPUBufferUsage kParametersUsage = kUniformUsage | WGPUBufferUsage_Storage;

std::uint64_t slices_bytes(const Work& work) {
  return work.steps.size() * kParameterBytes;
}

bool reads(const Step& step, Memory memory) {
  for (std::size_t n = 0; n < static_cast<std::size_t>(step.spec.num_bindings); ++n) {
    if (step.spec.bindings[n] == Access::read && step.operands[n].memory == memory) return true;
  }
  return false;
}

}  // namespace

// Outputs that are not asked for go behind the parts of a buffer that the step
// does not read.
Bound placed(const Work& work, const Step& step, const Operand& operand,
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
      return reads(step, Memory::staged) ? in(scratch.prepared, work.prepared_bytes)
                                         : in(scratch.staged, work.staged_bytes);
    case Memory::tensor: break;
  }
  return {static_cast<WGPUBuffer>(operand.buffer), operand.offset, operand.size};
}

Bound parameters_at(std::size_t step, const ScratchBuffers& scratch) {
  return {scratch.parameters.buffer, scratch.parameters.offset + step * kParameterBytes,
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
                     std::vector<Dispatch>& dispatches) {
  dispatches.clear();
  dispatches.reserve(work.steps.size());
  for (const Step& step : work.steps) {
    Dispatch& dispatch = dispatches.emplace_back();
    core::Status status = device.pipelines().get(step.spec, dispatch.pipeline);
    if (!status.ok()) return status;
    for (std::size_t n = 0; n < static_cast<std::size_t>(step.spec.num_bindings); ++n) {
      dispatch.bound[n] = placed(work, step, step.operands[n], scratch);
    }
    dispatch.parameters = parameters_at(dispatches.size() - 1, scratch);
    dispatch.grid = step.grid;
  }
  return {};
}

std::vector<std::byte> parameters_of(const Work& work) {
  std::vector<std::byte> bytes;
  for (const Step& step : work.steps) {
    bytes.insert(bytes.end(), step.parameters.begin(), step.parameters.end());
  }
  bytes.insert(bytes.end(), work.constants.begin(), work.constants.end());
  return bytes;
}

std::vector<std::size_t> chunks_of(const Work& work, const DeviceFacts& facts) {
  std::vector<std::size_t> chunks;
  double flops = 0.0;
  for (const Step& step : work.steps) {
    if (chunks.empty() || flops + step.flops > facts.submission_flops) {
      chunks.push_back(0);
      flops = 0.0;
    }
    ++chunks.back();
    flops += step.flops;
  }
  return chunks;
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
  if (!status.ok() || work.steps.empty()) return status;
  std::vector<Dispatch> dispatches;
  status = resolve(device, work, scratch, dispatches);
  if (status.ok()) {
    status = upload(device, scratch.parameters.buffer, 0, parameters_of(work));
  }
  std::size_t at = 0;
  for (const std::size_t count : chunks_of(work, device.facts())) {
    if (!status.ok()) break;
    status = submit(device, std::span(dispatches).subspan(at, count));
    at += count;
  }
  return status;
}

}  // namespace attn::webgpu
