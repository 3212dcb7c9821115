// DryRun: the dispatches of a call with the bytes of all its buffers, without a device, so that
// somebody else can run them: the page in browser/.
#pragma once

#include <attn/tensor.hpp>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "harness/inputs.hpp"
#include "webgpu/host/device.hpp"
#include "webgpu/host/work.hpp"

namespace attn::webgpu::test {

// The limits of every WebGPU device, with this workgroup memory (16384 bytes or more).
DeviceFacts core_facts(std::uint32_t workgroup_bytes);
// The same with subgroups of 32 threads.
DeviceFacts with_subgroups(DeviceFacts facts);

// What a call should write to a tensor in host memory: values in row-major order, and a tolerance
// per row (the last dimension). Non-finite values must be equal.
struct Output {
  std::string name;
  TensorView view;
  std::vector<double> expected, tolerances;
};

class DryRun {
 public:
  // A part of a buffer. Buffers are numbered: those of tensors, then the four that a call keeps for
  // itself (run.hpp, ScratchBuffers).
  struct Part {
    std::size_t buffer = 0;
    std::uint64_t offset = 0, size = 0;  // bytes
  };

  // Copies what the tensors' memory holds now, which stays where it is.
  void add(harness::TensorSet& tensors);
  // A tensor of that memory as the call gets it, in a buffer.
  [[nodiscard]] TensorView moved(const TensorView& tensor) const;
  // Where its first element is.
  [[nodiscard]] Part part_of(const TensorView& tensor) const;
  // What a step of `work` binds: its parameters first.
  [[nodiscard]] std::vector<Part> bound(std::size_t step) const;

  // What the buffers of tensors hold before the call, and the sizes of all.
  [[nodiscard]] const std::vector<std::vector<std::byte>>& tensors() const { return tensors_; }
  [[nodiscard]] std::vector<std::uint64_t> sizes() const;

  Work work;

 private:
  void add(harness::Storage& storage);

  std::map<const std::byte*, std::size_t> begins_;  // of the host's memory: the buffer's number
  std::vector<std::vector<std::byte>> tensors_;
};

}  // namespace attn::webgpu::test
