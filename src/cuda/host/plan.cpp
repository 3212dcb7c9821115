// The CUDA plan; see plan.hpp.
#include "cuda/host/plan.hpp"

#include <algorithm>
#include <cassert>

namespace attn::cuda {

KernelSpec& CudaPlan::add(const char* source, const char* entry, unsigned threads,
                          std::int64_t num_blocks) {
  assert(num_kernels < kMaxKernels);
  KernelSpec& spec = kernels[num_kernels];
  spec.config = Config(source);
  spec.entry = entry;
  spec.threads = threads;
  blocks[num_kernels++] = num_blocks;
  return spec;
}

void CudaPlan::add_first(const KernelSpec& spec, std::int64_t num_blocks) {
  assert(num_kernels < kMaxKernels);
  std::move_backward(kernels.begin(), kernels.begin() + num_kernels,
                     kernels.begin() + num_kernels + 1);
  std::move_backward(blocks.begin(), blocks.begin() + num_kernels,
                     blocks.begin() + num_kernels + 1);
  kernels[0] = spec;
  blocks[0] = num_blocks;
  ++num_kernels;
  ++main;
}

PlanSummary CudaPlan::summary() const {
  PlanSummary to;
  const Config& config = kernels[main].config;
  to.kernel = pass == Pass::backward ? "cuda_backward"
              : decode.tiles > 0     ? "cuda_decode"
                                     : "cuda_forward";
  to.family = family_name;
  to.refusals = refusals;
  for (std::size_t i = 0; i < config.size(); ++i) {
    core::append_config(to.config, config[i].name, config[i].value);
  }
  if (decode.tiles > 0) core::append_config(to.config, "splits", decode.splits);
  if (decode.cluster) core::append_config(to.config, "cluster", decode.splits);
  to.tile_q = config.get("tile_q").value_or(0);
  to.tile_kv = config.get("tile_kv").value_or(0);
  to.tasks = blocks[main];
  to.workspace_bytes = workspace_bytes;
  for (std::size_t i = 0; i < num_kernels; ++i) {
    if (blocks[i] > 0) to.kernels.emplace_back(kernels[i].entry);
  }
  return to;
}

}  // namespace attn::cuda
