// The host side of kernels/sm90/trial.cu: small test kernels with their own parameters, clusters
// and programmatic dependent launch.
#pragma once

#include "cuda/host/launch.hpp"
#include "cuda/host/tensor_map.hpp"

namespace attn::cuda::sm90 {

struct TrialPlan {
  KernelSpec spec;
  Grid grid;
};

// Plans a copy of `from`, 16-bit [batch, rows, heads, 64], or returns why the device or tensor is
// not supported.
core::Status plan_trial_copy(const DeviceFacts& facts, const TensorView& from, TrialPlan& plan);
// `to` is contiguous and has the shape of `from`.
core::Status launch_trial_copy(const CurrentContext& context, const Kernel& kernel,
                               const TrialPlan& plan, const TensorView& from, void* to,
                               abi::Stream stream);

TrialPlan plan_trial_primary();
TrialPlan plan_trial_secondary();

}  // namespace attn::cuda::sm90
