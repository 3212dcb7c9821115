// Plans of sm80/forward_cache.cu; see forward_cache_plan.hpp.
#include "cuda/families/sm80/forward_cache_plan.hpp"

#include <array>
#include <cstddef>
#include <memory>
#include <string_view>

#include "cuda/families/cache_params.hpp"
#include "cuda/families/few_queries.hpp"
#include "cuda/families/sm80/heuristics.hpp"
#include "cuda/families/sm80/value_slices.hpp"
#include "cuda/kernels/sm80/forward_cache_params.cuh"

namespace attn::cuda::sm80 {
namespace {

// Parameters of a call's kernels.
struct ForwardCacheBlocks {
  std::array<device::ForwardCacheParams, kMaxValueSlices> forward;
  device::append_rows::Params append;
};
static_assert(sizeof(ForwardCacheBlocks) <= sizeof(ParameterMemory) &&
              alignof(ForwardCacheBlocks) <= 64);

}  // namespace

bool uses_forward_cache_kernel(Pass pass, const Problem& p) {
  return pass != Pass::backward && (p.dtype == DType::f32 || is_wide(p)) &&
         (has_cache(p) || p.kv_type() != p.dtype);
}

core::Status set_forward_cache_params(const ParameterSources& from,
                                      std::span<KernelLaunch> launches, ParameterMemory& memory) {
  const Problem& p = from.problem;
  ForwardCacheBlocks& blocks =
      *std::construct_at(reinterpret_cast<ForwardCacheBlocks*>(memory.bytes.data()));
  blocks.append = {from.common, cache_of(p, from.tensors)};
  std::size_t slice = 0;
  for (KernelLaunch& launch : launches) {
    const std::string_view entry = launch.kernel->spec.entry;
    if (entry == kForwardCacheEntry) {
      device::ForwardCacheParams& params = blocks.forward[slice];
      params.common = value_slice(from, slice++);
      params.cache = blocks.append.cache;
      params.descale_k = descale_of(from.tensors.descale_k);
      params.descale_v = descale_of(from.tensors.descale_v);
      params.descale_rows = p.descale_rows ? 1 : 0;
      launch.parameters = block_of(params);
    }
    if (entry == kAppendEntry) launch.parameters = block_of(blocks.append);
  }
  return {};
}

}  // namespace attn::cuda::sm80
