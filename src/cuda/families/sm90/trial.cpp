// Trial kernels of the family sm90; see trial.hpp.
#include "cuda/families/sm90/trial.hpp"

#include <bit>
#include <string>

#include "cuda/kernels/sm90/trial.cuh"

namespace attn::cuda::sm90 {
namespace {

constexpr const char* kSource = "sm90/trial.cu";

TrialPlan plan_of(const char* entry, int threads, unsigned cluster, unsigned blocks) {
  TrialPlan plan;
  plan.spec.config = Config(kSource);
  plan.spec.entry = entry;
  plan.spec.threads = static_cast<unsigned>(threads);
  plan.spec.cluster = cluster;
  plan.grid.x = blocks;
  return plan;
}

}  // namespace

core::Status plan_trial_copy(const DeviceFacts& facts, const TensorView& from, TrialPlan& plan) {
  using namespace device::trial;
  if (facts.capability() != 90) {
    return core::Status::unsupported("cuda: trial copy: needs compute capability 9.0, cuda:" +
                                     std::to_string(facts.ordinal) + " is " + to_string(facts));
  }
  if (from.rank != 4 || size_of(from.dtype) != 2 || from.shape[3] != kColumns ||
      from.shape[1] % (kCluster * kRows) != 0) {
    return core::Status::invalid("cuda: trial copy: from: found " + to_string(from) +
                                 "; accepted 16-bit [batch, multiple of 128, heads, 64]");
  }
  const std::int64_t blocks = from.shape[0] * (from.shape[1] / kRows) * from.shape[2];
  plan = plan_of("attn_trial_copy", kThreads, kCluster, static_cast<unsigned>(blocks));
  return {};
}

core::Status launch_trial_copy(const CurrentContext& context, const Kernel& kernel,
                               const TrialPlan& plan, const TensorView& from, void* to,
                               abi::Stream stream) {
  using namespace device::trial;
  static_assert(sizeof(TensorMap) == sizeof(abi::TensorMap));
  abi::TensorMap map{};
  const RowTiles tiles{from, kRows, kColumns, 0};
  core::Status status = encode(context.driver(), "from", tiles, map);
  if (!status.ok()) return status;
  CopyParameters parameters;
  parameters.map = std::bit_cast<TensorMap>(map);
  parameters.to = static_cast<unsigned*>(to);
  parameters.rows = static_cast<int>(from.shape[1]);
  parameters.heads = static_cast<int>(from.shape[2]);
  return launch(context, kernel, plan.grid, stream, parameters);
}

TrialPlan plan_trial_primary() {
  return plan_of("attn_trial_primary", 32, 1, 1);
}

TrialPlan plan_trial_secondary() {
  return plan_of("attn_trial_secondary", 32, 1, 1);
}

}  // namespace attn::cuda::sm90
