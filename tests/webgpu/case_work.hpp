// CaseWork: the dispatches of a case with the bytes of all its buffers, without a device, so that
// somebody else can run them: the page in browser/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "cases/case.hpp"
#include "cases/inputs.hpp"
#include "webgpu/host/device.hpp"
#include "webgpu/host/step.hpp"

namespace attn::webgpu::test {

// What every WebGPU device has, with so many bytes of workgroup memory (16384 or more).
DeviceFacts core_facts(std::uint32_t workgroup_bytes);

class CaseWork {
 public:
  // Throws Error (unsupported) with the backend's reason.
  CaseWork(const cases::Case& c, const DeviceFacts& facts);

  // A part of a buffer. Buffers are numbered: those of tensors, then the four that a call keeps for
  // itself (run.hpp, ScratchBuffers).
  struct Part {
    std::size_t buffer = 0;
    std::uint64_t offset = 0, size = 0;  // bytes
  };
  // What a step binds: its parameters first.
  [[nodiscard]] std::vector<Part> bound(std::size_t step) const;
  // Where a tensor's first element is.
  [[nodiscard]] Part part_of(const TensorView& tensor) const;

  // What the buffers of tensors hold before the call, and the sizes of all.
  [[nodiscard]] const std::vector<std::vector<std::byte>>& tensors() const { return tensors_; }
  [[nodiscard]] std::vector<std::uint64_t> sizes() const;
  [[nodiscard]] const Work& work() const { return work_; }
  [[nodiscard]] const cases::OutputSet& outputs() const { return outputs_; }

 private:
  void add(cases::Storage& storage);
  [[nodiscard]] TensorView moved(const TensorView& tensor) const;

  cases::Inputs inputs_;
  cases::OutputSet outputs_;
  std::map<const std::byte*, std::size_t> begins_;  // of the host's memory: the buffer's number
  std::vector<std::vector<std::byte>> tensors_;
  Work work_;
};

// The distinct kernels of the case list's calls on such a device.
std::vector<KernelSpec> kernels_of_list(const DeviceFacts& facts);

}  // namespace attn::webgpu::test
