// The CUDA plan: a pure function of pass, problem and device facts, tested without a device.
#pragma once

#include <attn/problem.hpp>
#include <span>

#include "core/backend.hpp"
#include "core/plan.hpp"
#include "core/signature.hpp"
#include "cuda/host/modules.hpp"
#include "cuda/host/workspace.hpp"

namespace attn::cuda {

inline constexpr std::size_t kMaxKernels = 8;

// What a call launches: the kernels, one after the other, each with a grid of blocks along x and
// the same Arguments (kernels/shared/arguments.cuh). `plan` is what is printed of them.
struct DevicePlan {
  struct Tensor {
    const char* name = "";
    TensorView Arguments::* view = nullptr;
  };
  core::Plan plan;
  std::array<KernelSpec, kMaxKernels> kernels{};
  std::array<std::int64_t, kMaxKernels> blocks{};  // 0: nothing to do
  Workspace workspace;                             // of the backward
  std::size_t num_kernels = 0;
  std::array<Tensor, core::kMaxSlots> tensors{};  // that the call may follow
  std::size_t num_tensors = 0;

  [[nodiscard]] std::span<const KernelSpec> specs() const { return {kernels.data(), num_kernels}; }
};

// Whether tensors of the problem can't be loaded 16 bytes at a time wherever they lie; for a
// call's, see device_arguments().
bool loads_by_elements(Pass pass, const Problem& problem);

// Both for problems that validate_problem() accepted; make_plan for those that check_support()
// takes too. `by_elements`: the call's tensors need it, whatever the problem says.
core::Capability check_support(Pass pass, const Problem& problem, const DeviceFacts& facts);
DevicePlan make_plan(Pass pass, const Problem& problem, const DeviceFacts& facts,
                     bool by_elements = false);

}  // namespace attn::cuda
