// The parameters of sm90/forward.cu; see forward_params.hpp.
#include "cuda/families/sm90/forward_params.hpp"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numbers>
#include <string_view>
#include <utility>

#include "cuda/families/sm90/forward_plan.hpp"
#include "cuda/families/sm90/forward_tiles.hpp"
#include "cuda/families/sm90/map_encoder.hpp"
#include "cuda/kernels/passes/tile_counter.cuh"
#include "cuda/kernels/sm90/forward_params.cuh"

namespace attn::cuda::sm90 {
namespace {

constexpr std::int64_t kQRows = 64;        // rows of Q per warpgroup
constexpr std::uint32_t kStoredRows = 16;  // rows of O that a warp stores

device::sm90::Descales descales(const TensorView& view) {
  if (!view.given()) return {};
  return {static_cast<const float*>(view.address()), view.strides[0], view.strides[1]};
}

// tanh(x) / x = sum of c_n x^2n with a relative error of 7e-8 for |x| up to 0.185, fitted like
// kSeries in host/arguments.cpp.
void fill_short_series(device::sm90::ForwardParams& params) {
  constexpr double kReach = 0.185;
  constexpr double kSeries[] = {0.9999999338546951, -0.33329849489056507, 0.13060591538018715};
  const device::Arguments& a = params.common;
  if (a.cap_reach < 0.0f) return;
  double factor = a.scale * std::numbers::log2e;
  const double ratio = a.inverse_cap;
  for (int n = 0; n < 3; ++n, factor *= ratio * ratio) {
    params.cap_short[n] = static_cast<float>(kSeries[n] * factor);
  }
  params.cap_short_reach = static_cast<float>(std::min(kReach / std::abs(ratio), 1e18));
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
  const Problem& p = from.problem;
  const TmaTiles& tiles = plan.tma;
  Blocks& blocks = *std::construct_at(reinterpret_cast<Blocks*>(memory.bytes.data()));
  device::sm90::ForwardParams& params = blocks.forward;
  const auto kv_rows = static_cast<std::uint32_t>(tiles.kv);
  MapEncoder maps(from.driver);
  if (!is_split(p)) {  // threads load f32, without TMA
    const auto q_rows = static_cast<std::uint32_t>(std::min(kQRows, tiles.q / tiles.heads));
    maps.rows("q", from.tensors.q, q_rows, params.q, tiles.qk_bytes);
    maps.rows("k", from.tensors.k, kv_rows, params.k, tiles.qk_bytes);
    maps.rows("v", from.tensors.v, kv_rows, params.v, tiles.vo_bytes);
  }
  if (tiles.stores_o) maps.rows("o", from.tensors.o, kStoredRows, params.o);
  maps.scores("bias", from.tensors.bias, p.bias, tiles.kv, params.bias);
  maps.scores("mask", from.tensors.mask, p.mask, tiles.kv, params.mask);
  if (!maps.status().ok()) return std::move(maps.status());
  params.common = from.common;
  if (p.softcap) fill_short_series(params);
  params.descale_q = descales(from.tensors.descale_q);
  params.descale_k = descales(from.tensors.descale_k);
  params.descale_v = descales(from.tensors.descale_v);
  const TileCounts counts = tile_counts(p, tiles.q, tiles.heads);
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
