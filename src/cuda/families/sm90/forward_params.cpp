// The parameters of sm90/forward.cu; see forward_params.hpp.
#include "cuda/families/sm90/forward_params.hpp"

#include <algorithm>
#include <memory>
#include <string_view>
#include <utility>

#include "cuda/families/sm90/forward_plan.hpp"
#include "cuda/families/sm90/map_encoder.hpp"
#include "cuda/kernels/passes/tile_counter.cuh"
#include "cuda/kernels/sm90/forward_params.cuh"

namespace attn::cuda::sm90 {
namespace {

constexpr std::uint32_t kQRows = 64;       // of a warpgroup
constexpr std::uint32_t kStoredRows = 16;  // of O, by a warp

device::sm90::Descales descales(const TensorView& view) {
  if (!view.given()) return {};
  return {static_cast<const float*>(view.address()), view.strides[0], view.strides[1]};
}

struct Blocks {
  device::sm90::ForwardParams forward;
  device::tile_counter::Params counter;
};
static_assert(sizeof(Blocks) <= sizeof(ParameterMemory) && alignof(Blocks) <= 64);

}  // namespace

core::Status set_forward_params(const ParameterSources& from, std::span<KernelLaunch> launches,
                                ParameterMemory& memory) {
  const CudaPlan& plan = from.plan;
  const Problem& p = plan.problem;
  const Config& config = plan.kernels[plan.main].config;
  const std::int64_t tile_q = *config.get("tile_q");
  const std::int64_t tile_kv = *config.get("tile_kv");
  Blocks& blocks = *std::construct_at(reinterpret_cast<Blocks*>(memory.bytes.data()));
  device::sm90::ForwardParams& params = blocks.forward;
  const auto kv_rows = static_cast<std::uint32_t>(tile_kv);
  MapEncoder maps(from.driver);
  const auto row_bytes = [&](const char* dim) {
    return static_cast<std::uint32_t>(
        std::min<std::int64_t>(128, *config.get(dim) * size_of(p.dtype)));
  };
  maps.rows("q", from.tensors.q, kQRows, params.q, row_bytes("dim_qk"));
  maps.rows("k", from.tensors.k, kv_rows, params.k, row_bytes("dim_qk"));
  maps.rows("v", from.tensors.v, kv_rows, params.v, row_bytes("dim_vo"));
  if (config.get("store_elements") == 0) maps.rows("o", from.tensors.o, kStoredRows, params.o);
  maps.scores("bias", from.tensors.bias, p.bias, tile_kv, params.bias);
  maps.scores("mask", from.tensors.mask, p.mask, tile_kv, params.mask);
  if (!maps.status().ok()) return std::move(maps.status());
  params.common = from.common;
  params.descale_q = descales(from.tensors.descale_q);
  params.descale_k = descales(from.tensors.descale_k);
  params.descale_v = descales(from.tensors.descale_v);
  const TileCounts counts = tile_counts(p, tile_q);
  params.q_tiles = static_cast<int>(counts.q_tiles);
  params.num_tiles = static_cast<int>(counts.num_tiles);
  params.heads_at_once = plan.heads_at_once;
  const Part& counter = plan.workspace.tile_counter;
  if (counter.bytes > 0) {
    params.next_tile =
        reinterpret_cast<unsigned*>(static_cast<char*>(from.workspace) + counter.offset);
    blocks.counter.counter = params.next_tile;
  }
  for (KernelLaunch& launch : launches) {
    const std::string_view entry = launch.kernel->spec.entry;
    if (entry == kForwardEntry) launch.parameters = block_of(params);
    if (entry == kCounterEntry) launch.parameters = block_of(blocks.counter);
  }
  return {};
}

}  // namespace attn::cuda::sm90
