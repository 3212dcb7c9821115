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

// What a call launches: the kernels in order, each with a grid of blocks along x and the same
// Arguments (kernels/shared/arguments.cuh).
struct CudaPlan final : core::Plan {
  struct Tensor {
    const char* name = "";
    TensorView Arguments::* view = nullptr;
  };
  using core::Plan::Plan;
  [[nodiscard]] PlanSummary summary() const override;

  std::array<KernelSpec, kMaxKernels> kernels{};
  std::array<std::int64_t, kMaxKernels> blocks{};  // 0: nothing to do
  Workspace workspace;                             // of the backward
  std::size_t num_kernels = 0;
  std::size_t main = 0;                           // the kernel that the summary describes
  std::array<Tensor, core::kMaxSlots> tensors{};  // that the call may follow
  std::size_t num_tensors = 0;

  [[nodiscard]] std::span<const KernelSpec> specs() const { return {kernels.data(), num_kernels}; }
};

// The plan of calls whose tensors allow `access`, or why there is none. For problems that
// validate_problem() accepted.
core::Result<CudaPlan> make_plan(Pass pass, const Problem& problem, const DeviceFacts& facts,
                                 core::Access access = core::Access::tma);

}  // namespace attn::cuda
