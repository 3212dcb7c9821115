// The plan of sm90/backward_wide.cu; see backward_wide_plan.hpp.
#include "cuda/families/sm90/backward_wide_plan.hpp"

#include <algorithm>
#include <cstddef>

#include "core/divide_up.hpp"
#include "cuda/families/sm90/backward_plan.hpp"
#include "cuda/kernels/sm90/backward_wide_shared.cuh"

namespace attn::cuda::sm90 {
namespace {

constexpr std::int64_t kMaxNarrowDim = 128;
constexpr std::int64_t kMaxDim = 256;
static_assert(kWideTileQ == device::sm90::kWideTileQ);

struct Candidate {
  device::sm90::WideTiles tiles;  // dim, dim_vo, keys, stages of dO
  bool split;
};
// Plans use the one that kCandidate names.
constexpr Candidate k192x128[] = {{{192, 128, 96, 2}, true},
                                  {{192, 128, 96, 2}, false},
                                  {{192, 128, 64, 2}, true},
                                  {{192, 128, 64, 2}, false}};
constexpr Candidate k192[] = {{{192, 192, 96, 1}, true},
                              {{192, 192, 96, 1}, false},
                              {{192, 192, 80, 2}, true},
                              {{192, 192, 80, 2}, false}};
constexpr Candidate k256[] = {{{256, 256, 80, 1}, true},
                              {{256, 256, 80, 1}, false},
                              {{256, 256, 64, 1}, true},
                              {{256, 256, 64, 1}, false}};
constexpr std::size_t kCandidate = 0;

const Candidate& candidate_of(const Problem& p) {
  if (std::max(p.dim_qk, p.dim_vo) > 192) return k256[kCandidate];
  return (p.dim_vo > 128 ? k192 : k192x128)[kCandidate];
}

}  // namespace

bool needs_wide_backward(const Problem& p) {
  return std::max(p.dim_qk, p.dim_vo) > kMaxNarrowDim;
}

int wide_backward_dim(const Problem& p) {
  return candidate_of(p).tiles.dim;
}

std::string wide_backward_refusal(const Problem& p) {
  if (std::max(p.dim_qk, p.dim_vo) > kMaxDim) return "has no backward above dim 256";
  const bool packed = p.layout_q == Layout::packed || p.layout_kv == Layout::packed;
  if (packed || p.lengths_q || p.lengths_kv) return "has no backward with lengths above dim 128";
  if (p.kv_begin || p.kv_end) return "has no backward with kv_begin or kv_end above dim 128";
  if (p.mask.given || p.bias.given || p.softcap || p.alibi || p.dropout) {
    return "has no backward with a mask, score modifiers or dropout above dim 128";
  }
  return {};
}

void add_wide_backward(const Problem& p, CudaPlan& plan) {
  const auto& [tiles, split] = candidate_of(p);
  KernelSpec& kernel =
      plan.add("sm90/backward_wide.cu", kBackwardEntry, 128 * (1 + device::sm90::kWideWarpgroups),
               core::divide_up(p.len_kv, tiles.tile_kv) * p.heads_kv * p.batch);
  kernel.shared_bytes = static_cast<unsigned>(device::sm90::BackwardWideSharedOf(tiles).bytes);
  kernel.config.set("dtype", static_cast<int>(p.dtype))
      .set("dim", tiles.dim)
      .set("dim_vo", tiles.dim_vo)
      .set("tile_q", device::sm90::kWideTileQ)
      .set("tile_kv", tiles.tile_kv)
      .set("dout_stages", tiles.dout_stages)
      .set("split", split)
      .set("blocks", 1)
      .set("deterministic", p.dq && p.deterministic)
      .set("left_bound", p.window_left.has_value())
      .set("store_elements", p.accumulate || p.nonfinite_zero || p.grad_type() != p.dtype)
      .set("softcap", false)
      .set("alibi", false)
      .set("bias_type", 0)
      .set("element_access", false);
}

}  // namespace attn::cuda::sm90
