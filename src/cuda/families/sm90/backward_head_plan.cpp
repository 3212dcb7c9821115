// The plan of sm90/backward_head.cu; see backward_head_plan.hpp.
#include "cuda/families/sm90/backward_head_plan.hpp"

#include <algorithm>

#include "core/divide_up.hpp"
#include "cuda/families/sm90/backward_plan.hpp"
#include "cuda/kernels/sm90/backward_shared.cuh"

namespace attn::cuda::sm90 {
namespace {

constexpr std::int64_t kMaxKeys = 512;

// The lowest utilization of multiprocessors with one head on each at a time: 100 heads on 132
// multiprocessors use 76 %, 140 heads 53 % (two waves). Below that, sm90/backward.cu is used,
// because it splits heads into tiles of keys.
constexpr double kLeastFilled = 0.75;

bool takes(const Problem& p) {
  if (std::max(p.dim_qk, p.dim_vo) > device::sm90::kHeadDim) return false;
  if (p.len_q > device::sm90::kHeadRows || p.len_kv > kMaxKeys) return false;
  if (p.heads_q != p.heads_kv || !p.dq || p.dsink || p.dbias) return false;
  // Slower: 1349 us with 512 keys; sm90/backward.cu with dq_accum takes 964 us (H200, 16384 tokens,
  // 32 heads).
  if (p.accumulate) return false;
  if (p.bias.given || p.mask.given || has_lengths(p) || has_row_ranges(p)) return false;
  return every_row_sees_a_key(p);
}

}  // namespace

bool pays_to_own_heads(const Problem& p, const DeviceFacts& facts) {
  if (!takes(p)) return false;
  const std::int64_t heads = p.heads_q * p.batch;
  const auto slots =
      static_cast<double>(core::round_up(heads, static_cast<std::int64_t>(facts.num_sms)));
  return static_cast<double>(heads) >= kLeastFilled * slots;
}

void add_head_backward(const Problem& p, const DeviceFacts& facts, CudaPlan& plan) {
  constexpr int kThreads = 128 * (1 + device::sm90::kBackwardWarpgroups);
  KernelSpec& kernel = plan.add(kHeadBackwardSource, kBackwardEntry, kThreads,
                                std::min<std::int64_t>(p.heads_q * p.batch, facts.num_sms));
  kernel.shared_bytes = static_cast<unsigned>(device::sm90::BackwardHeadShared().bytes);
  kernel.config.set("dtype", static_cast<int>(p.dtype))
      .set("dim", device::sm90::kHeadDim)
      .set("tile_q", device::sm90::kHeadTileQ)
      .set("tile_kv", device::sm90::kBackwardTileKv)
      .set("blocks", 1)
      .set("lengths", false)
      .set("persistent", false)
      .set("dbias", 0);
  set_options(kernel.config, p);
}

}  // namespace attn::cuda::sm90
