// The CUDA plan: a pure function of pass, problem and device facts, tested without a device.
#pragma once

#include <attn/problem.hpp>
#include <span>

#include "core/backend.hpp"
#include "core/plan.hpp"
#include "cuda/host/modules.hpp"

namespace attn::cuda {

inline constexpr std::size_t kMaxKernels = 8;

// What a call launches. The kernels are in the order of their first launch; `plan` is what is
// printed of them.
struct DevicePlan {
  core::Plan plan;
  std::array<KernelSpec, kMaxKernels> kernels{};
  std::size_t num_kernels = 0;

  [[nodiscard]] std::span<const KernelSpec> specs() const { return {kernels.data(), num_kernels}; }
};

// Both for problems that validate_problem() accepted; make_plan for those that check_support()
// takes too.
core::Capability check_support(Pass pass, const Problem& problem, const DeviceFacts& facts);
DevicePlan make_plan(Pass pass, const Problem& problem, const DeviceFacts& facts);

}  // namespace attn::cuda
