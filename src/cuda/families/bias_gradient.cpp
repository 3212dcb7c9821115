// The kernels of dbias in a plan; see bias_gradient.hpp.
#include "cuda/families/bias_gradient.hpp"

#include <algorithm>
#include <cstdint>

#include "core/divide_up.hpp"
#include "cuda/families/sm80/heuristics.hpp"
#include "cuda/families/sm80/score_config.hpp"
#include "cuda/kernels/passes/bias_gradient_convert.cuh"
#include "cuda/kernels/passes/bias_gradient_sum.cuh"

namespace attn::cuda {
namespace {

// The waves to split the work into if there are too few blocks. Tiles of narrow heads are short,
// and with few waves SMs would finish at different times.
constexpr std::int64_t kWaves = 1;
constexpr std::int64_t kNarrowWaves = 4;

// The launch of sm80/bias_gradient.cu.
struct SeparateKernel {
  sm80::Shape shape;
  sm80::BiasGradientTiles tiles;
  std::int64_t blocks = 0;
  int splits = 1;
};

SeparateKernel plan_separate_kernel(const Problem& p, const DeviceFacts& facts) {
  SeparateKernel planned;
  planned.shape = sm80::shape_of(Pass::backward, p);
  planned.tiles = sm80::choose_bias_gradient_tiles(planned.shape, facts);
  std::int64_t visits = 1;  // tiles of scores that are summed into one tile of dbias
  std::int64_t blocks = 1;
  const auto dimension = [&](bool full, std::int64_t count) { (full ? blocks : visits) *= count; };
  blocks *= p.bias.entries(p.batch);
  visits *= p.bias.sharers(p.batch);
  dimension(p.bias.head, p.heads_q);
  dimension(p.bias.q, core::divide_up(p.len_q, planned.tiles.tile_q));
  dimension(p.bias.kv, core::divide_up(p.len_kv, planned.tiles.tile_kv));
  const std::int64_t waves = sm80::is_narrow(p) ? kNarrowWaves : kWaves;
  const std::int64_t wanted = waves * 2 * facts.num_sms;
  if (blocks > 0 && blocks < wanted) {
    planned.splits = static_cast<int>(
        std::max<std::int64_t>(1, std::min(core::divide_up(wanted, blocks), visits)));
  }
  planned.blocks = blocks * planned.splits;
  return planned;
}

}  // namespace

bool can_sum_bias_gradient(const Problem& p, const DeviceFacts& facts) {
  if (!p.dbias || !(p.dq || p.dk || p.dv)) return false;
  if (!p.bias.q || !p.bias.kv || facts.capability() < 90) return false;
  const bool summed = p.bias.sharers(p.batch) > 1 || (!p.bias.head && p.heads_q > 1);
  return !(summed && p.deterministic) && dbias_accum_fits(p, facts.memory_bytes / 8);
}

void add_bias_gradient_convert(CudaPlan& plan, const Problem& p) {
  plan.add("passes/bias_gradient_convert.cu", "attn_bias_gradient_convert",
           device::bias_gradient_convert::kThreads,
           core::divide_up(p.len_kv, device::bias_gradient_convert::kKeys) *
               (dbias_accum_rows(p) / device::bias_gradient_convert::kQueries));
}

int bias_gradient_splits(const Problem& p, const DeviceFacts& facts) {
  return plan_separate_kernel(p, facts).splits;
}

void add_bias_gradient(CudaPlan& plan, const Problem& p, const DeviceFacts& facts,
                       bool element_access) {
  const SeparateKernel planned = plan_separate_kernel(p, facts);
  const sm80::BiasGradientTiles& tiles = planned.tiles;
  KernelSpec& spec = plan.add("sm80/bias_gradient.cu", "attn_bias_gradient",
                              static_cast<unsigned>(32 * tiles.warps), planned.blocks);
  spec.shared_bytes = static_cast<unsigned>(sm80::shared_bytes_of(planned.shape, tiles));
  sm80::set_problem(spec.config, p, planned.shape, element_access);
  spec.config.set("tile_q", tiles.tile_q)
      .set("tile_kv", tiles.tile_kv)
      .set("warps", tiles.warps)
      .set("stages", tiles.stages)
      .set("blocks", tiles.blocks);
  if (planned.splits > 1) add_bias_gradient_sum(plan, p);
}

void add_bias_gradient_sum(CudaPlan& plan, const Problem& p) {
  plan.add("passes/bias_gradient_sum.cu", "attn_bias_gradient_sum",
           device::bias_gradient_sum::kThreads,
           core::divide_up(dbias_elements(p), device::bias_gradient_sum::kThreads));
}

}  // namespace attn::cuda
