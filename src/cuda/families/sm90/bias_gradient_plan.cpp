// The plan of sm90/bias_gradient.cu; see bias_gradient_plan.hpp.
#include "cuda/families/sm90/bias_gradient_plan.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "core/divide_up.hpp"
#include "cuda/families/bias_gradient.hpp"
#include "cuda/families/sm90/backward_plan.hpp"
#include "cuda/kernels/sm90/bias_gradient_shared.cuh"

namespace attn::cuda::sm90 {
namespace {

static_assert(device::sm90::kBiasGradientMaxBytes == kSharedPerBlock);

// The kernel counts visits in 32 bits.
constexpr std::int64_t kMaxVisits = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kMaxBiasGradientDim = 128;

// The tiles of dbias, and the sequences and heads that each of them sums.
struct BiasGradientWork {
  std::int64_t tiles = 1;
  std::int64_t visits = 1;
};
BiasGradientWork work_of(const Problem& p) {
  constexpr std::int64_t kTile = device::sm90::kBiasGradientTile;
  BiasGradientWork work;
  work.tiles = core::divide_up(p.len_q, kTile) * core::divide_up(p.len_kv, kTile) *
               p.bias.entries(p.batch) * (p.bias.head ? p.heads_q : 1);
  work.visits = p.bias.sharers(p.batch) * (p.bias.head ? 1 : p.heads_q);
  return work;
}

}  // namespace

bool takes_bias_gradient_sm90(const Problem& p) {
  if (!p.dbias || !p.bias.q || !p.bias.kv || std::max(p.dim_qk, p.dim_vo) > kMaxBiasGradientDim) {
    return false;
  }
  if (p.softcap || p.alibi || p.dropout || (p.mask.given && p.mask.q)) return false;
  // An f32 dbias of a 16-bit bias would spill 560 bytes.
  if (p.dbias_type() != p.bias_type()) return false;
  if (has_lengths(p) || has_row_ranges(p) || p.accumulate || p.nonfinite_zero) return false;
  return work_of(p).visits <= kMaxVisits;
}

bool has_few_bias_gradient_tiles(const Problem& p) {
  constexpr std::int64_t kFewTiles = 8;
  return work_of(p).tiles <= kFewTiles;
}

// If dbias has too few tiles to fill the device, the sums are split. The estimate counts visits: a
// block runs alone on its multiprocessor, and its begin and end take as long as kBlockVisits. With
// splits, each also writes f32 sums, which another kernel reads.
int bias_gradient_splits_sm90(const Problem& p, const DeviceFacts& facts) {
  constexpr std::int64_t kBlockVisits = 2;
  constexpr std::int64_t kPartialVisits = 2;
  constexpr std::int64_t kMaxSplits = 64;
  const BiasGradientWork work = work_of(p);
  std::int64_t best = 1;
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (std::int64_t splits = 1; splits <= std::min(work.visits, kMaxSplits); ++splits) {
    const std::int64_t waves = core::divide_up(work.tiles * splits, std::int64_t{facts.num_sms});
    const std::int64_t visits =
        core::divide_up(work.visits, splits) + kBlockVisits + (splits > 1 ? kPartialVisits : 0);
    if (waves * visits < least) {
      least = waves * visits;
      best = splits;
    }
    if (work.tiles >= 4 * std::int64_t{facts.num_sms}) break;  // enough waves, and no overflow
  }
  return static_cast<int>(best);
}

void add_bias_gradient_sm90(CudaPlan& plan, const Problem& p, const DeviceFacts& facts, int box_q) {
  const int splits = bias_gradient_splits_sm90(p, facts);
  const std::int64_t dim_qk = core::round_up(p.dim_qk, std::int64_t{16});
  const std::int64_t dim_vo = core::round_up(p.dim_vo, std::int64_t{16});
  KernelSpec& spec = plan.add("sm90/bias_gradient.cu", kBiasGradientEntry,
                              device::sm90::kBiasGradientThreads, work_of(p).tiles * splits);
  spec.shared_bytes = static_cast<unsigned>(
      device::sm90::BiasGradientSharedOf(static_cast<int>(dim_qk), static_cast<int>(dim_vo),
                                         static_cast<int>(size_of(p.bias_type())))
          .bytes);
  spec.config.set("dtype", static_cast<int>(p.dtype))
      .set("dim_qk", dim_qk)
      .set("dim_vo", dim_vo)
      .set("box_q", box_q)
      .set("bias_type", static_cast<int>(p.bias_type()))
      .set("dbias_type", static_cast<int>(splits > 1 ? DType::f32 : p.dbias_type()))
      .set("partials", splits > 1)
      .set("mask", p.mask.given)
      .set("softcap", 0)
      .set("alibi", 0)
      .set("shared_entries", p.mask.given && p.mask.per_entry > 1)
      .set("blocks", 1);
  if (splits > 1) add_bias_gradient_sum(plan, p);
}

}  // namespace attn::cuda::sm90
