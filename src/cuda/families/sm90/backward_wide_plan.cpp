// The plan of sm90/backward_wide.cu; see backward_wide_plan.hpp.
#include "cuda/families/sm90/backward_wide_plan.hpp"

#include <algorithm>
#include <cstddef>

#include "core/divide_up.hpp"
#include "cuda/families/sm90/backward_plan.hpp"
#include "cuda/kernels/sm90/backward_wide_shared.cuh"

namespace attn::cuda::sm90 {
namespace {

constexpr std::int64_t kMaxNarrowBackwardDim = 128;
constexpr std::int64_t kMaxBlockDim = 256;
constexpr int kMaxCluster = 2;
static_assert(kWideTileQ == device::sm90::kWideTileQ);

struct Candidate {
  device::sm90::WideTiles tiles;  // dim, dim_vo, keys, stages of dO
  bool split;
};
// Measured alternatives. Plans use the one at index kCandidate.
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
constexpr std::size_t kFewerKeys = 2;
// With a tile of bias or mask, tiles have 64 keys: TMA loads it in rows of 64 or 128 bytes, and 80
// or 96 keys are no multiple of that.
constexpr Candidate k192x128With64 = {{192, 128, 64, 2}, true};
constexpr Candidate k192With64 = {{192, 192, 64, 2}, true};
constexpr Candidate k256With64 = {{256, 256, 64, 1}, true};

// Softcap and dropout use fewer keys, because they would spill: softcap 292 bytes with 80 keys at
// dim 256, and 240 bytes with 96 keys at dim 192.
//
// The blocks of a cluster have 64 keys: each keeps the other's part of dP in shared memory.
const Candidate& candidate_of(const Problem& p) {
  const int cluster = wide_backward_cluster(p);
  const bool needs_64 = (p.bias.given && p.bias.q) || (p.mask.given && p.mask.q) || cluster > 1;
  const bool registers = p.softcap || p.dropout;
  if (std::max(p.dim_qk, p.dim_vo) > 192 * cluster) {
    return needs_64 || registers ? k256With64 : k256[kCandidate];
  }
  if (p.dim_vo <= 128 * cluster) return needs_64 ? k192x128With64 : k192x128[kCandidate];
  if (needs_64) return k192With64;
  return k192[registers ? kFewerKeys : kCandidate];
}

}  // namespace

bool needs_wide_backward(const Problem& p) {
  return std::max(p.dim_qk, p.dim_vo) > kMaxNarrowBackwardDim;
}

int wide_backward_cluster(const Problem& p) {
  return std::max(p.dim_qk, p.dim_vo) > kMaxBlockDim ? kMaxCluster : 1;
}

int wide_backward_dim(const Problem& p) {
  return candidate_of(p).tiles.dim * wide_backward_cluster(p);
}

int wide_backward_tile_kv(const Problem& p) {
  return candidate_of(p).tiles.tile_kv;
}

bool takes_backward_dims(const Problem& p) {
  return std::max(p.dim_qk, p.dim_vo) <= kMaxBlockDim * kMaxCluster;
}

int wide_backward_shared_bytes(const Problem& p) {
  device::sm90::WideTiles tiles = candidate_of(p).tiles;
  tiles.cluster = wide_backward_cluster(p);
  return device::sm90::BackwardWideSharedOf(tiles, score_bytes_of(p, kWideTileQ, tiles.tile_kv))
             .bytes +
         visit_bytes_of(p, kWideTileQ);
}

void add_wide_backward(const Problem& p, CudaPlan& plan) {
  const auto& [tiles, split] = candidate_of(p);
  const int cluster = wide_backward_cluster(p);
  KernelSpec& kernel =
      plan.add("sm90/backward_wide.cu", kBackwardEntry, 128 * (1 + device::sm90::kWideWarpgroups),
               core::divide_up(p.len_kv, tiles.tile_kv) * p.heads_kv * p.batch * cluster);
  kernel.cluster = static_cast<unsigned>(cluster);
  kernel.shared_bytes = static_cast<unsigned>(wide_backward_shared_bytes(p));
  kernel.config.set("dtype", static_cast<int>(p.dtype))
      .set("dim", tiles.dim)
      .set("dim_vo", tiles.dim_vo)
      .set("cluster", cluster)
      .set("tile_q", device::sm90::kWideTileQ)
      .set("tile_kv", tiles.tile_kv)
      .set("dout_stages", tiles.dout_stages)
      .set("split", split)
      .set("blocks", 1)
      .set("deterministic", p.dq && p.deterministic)
      .set("lengths", has_lengths(p));
  set_options(kernel.config, p);
}

}  // namespace attn::cuda::sm90
