// The parameters of the sm90 backward kernels; see backward_params.hpp.
#include "cuda/families/sm90/backward_params.hpp"

#include <memory>
#include <string_view>
#include <utility>

#include "cuda/families/sm90/backward_head_plan.hpp"
#include "cuda/families/sm90/backward_plan.hpp"
#include "cuda/families/sm90/bias_gradient_plan.hpp"
#include "cuda/families/sm90/map_encoder.hpp"
#include "cuda/kernels/sm90/backward_params.cuh"
#include "cuda/kernels/sm90/backward_shared.cuh"

namespace attn::cuda::sm90 {

using device::sm90::BackwardParams;

static_assert(sizeof(BackwardParams) <= sizeof(ParameterMemory) && alignof(BackwardParams) <= 64);

core::Status set_backward_params(const ParameterSources& from, std::span<KernelLaunch> launches,
                                 ParameterMemory& memory) {
  const CudaPlan& plan = from.plan;
  BackwardParams& params =
      *std::construct_at(reinterpret_cast<BackwardParams*>(memory.bytes.data()));
  const auto q_rows = static_cast<std::uint32_t>(plan.tma.q);
  const char* const source = plan.kernels[plan.main].config.source();
  const bool owns_head = std::string_view(source) == kHeadBackwardSource;
  const auto kv_rows = static_cast<std::uint32_t>(owns_head ? kHeadKeyRows : plan.tma.kv);
  MapEncoder maps(from.driver);
  maps.rows("q", from.tensors.q, q_rows, params.q);
  maps.rows("k", from.tensors.k, kv_rows, params.k);
  maps.rows("v", from.tensors.v, kv_rows, params.v);
  maps.rows("dout", from.tensors.dout, q_rows, params.dout);
  if (owns_head && !from.problem.delta) maps.rows("o", from.tensors.o, q_rows, params.o);
  maps.scores("bias", from.tensors.bias, from.problem.bias, kv_rows, params.bias);
  maps.scores("mask", from.tensors.mask, from.problem.mask, kv_rows, params.mask);
  if (plan.tma.stores_dbias) {
    maps.scores("dbias", from.tensors.dbias, from.problem.bias, kv_rows, params.dbias);
  }
  if (!maps.status().ok()) return std::move(maps.status());
  params.common = from.common;
  params.kv_heads_reversed = static_cast<unsigned>(plan.workspace.kv_heads_reversed);
  if (const Part& counter = plan.workspace.tile_counter; counter.bytes > 0) {
    params.num_items = static_cast<unsigned>(num_key_tiles(from.problem));
    params.num_taken =
        reinterpret_cast<unsigned*>(static_cast<char*>(from.workspace) + counter.offset);
  }
  for (KernelLaunch& launch : launches) {
    const std::string_view entry = launch.kernel->spec.entry;
    if (entry == kBackwardEntry || entry == kBiasGradientEntry) {
      launch.parameters = block_of(params);
    }
  }
  return {};
}

}  // namespace attn::cuda::sm90
