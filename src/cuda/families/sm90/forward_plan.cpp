// The plan of sm90/forward.cu; see forward_plan.hpp.
#include "cuda/families/sm90/forward_plan.hpp"

#include <algorithm>

#include "core/divide_up.hpp"
#include "core/signature.hpp"
#include "cuda/families/few_queries.hpp"
#include "cuda/families/passes.hpp"
#include "cuda/families/shared_entries.hpp"
#include "cuda/families/sm90/backward_plan.hpp"
#include "cuda/families/sm90/forward_tiles.hpp"
#include "cuda/kernels/passes/tile_counter.cuh"

namespace attn::cuda::sm90 {
namespace {

constexpr std::int64_t kMaxDim = 512;
constexpr std::int64_t kMaxBiasDim = 128;
constexpr std::int64_t kMaxSplitDim = 128;
// Kernels add tiles to lengths, and blocks to tiles, in 32 bits.
constexpr std::int64_t kMaxLength = (std::int64_t{1} << 30) - 1;
constexpr std::int64_t kMaxTiles = (std::int64_t{1} << 30) - 1;
// K and V of the heads in flight may fill 5/8 of L2. Q, O, bias and mask use the rest.
constexpr std::int64_t kL2PartsForKv = 5;

// The query heads to schedule together, so that L2 holds their K and V.
int heads_at_once(const Problem& p, const DeviceFacts& facts) {
  const std::int64_t head_bytes = p.len_kv * (p.dim_qk + p.dim_vo) * size_of(p.dtype);
  const std::int64_t kv_heads =
      std::max<std::int64_t>(1, facts.l2_bytes / 8 * kL2PartsForKv / head_bytes);
  const std::int64_t heads = std::min(kv_heads * (p.heads_q / p.heads_kv), p.heads_q * p.batch);
  return static_cast<int>(heads * std::max(1, value_parts(p)));
}

// Why the kernel does not run an f32 problem.
std::string split_refusal(const Problem& p) {
  if (p.precision == Precision::ieee) return "has no kernel for the precision ieee";
  if (std::max(p.dim_qk, p.dim_vo) > kMaxSplitDim) return "has no kernel for f32 above dim 128";
  if (p.bias.given || p.mask.given) return "has no kernel for a bias or mask in f32";
  return {};
}

std::string type_refusal(const Problem& p) {
  if (core::is_f8(p.dtype)) return {};  // k and v may have the other f8 type
  if (p.dtype != DType::f16 && p.dtype != DType::bf16 && !is_split(p)) {
    return std::string("has no kernel for ") + to_string(p.dtype);
  }
  if (p.kv_type() != p.dtype) return "has no kernel for k and v of another type than q";
  return is_split(p) ? split_refusal(p) : "";
}

std::string option_refusal(const Problem& p) {
  if (std::max(p.dim_qk, p.dim_vo) > kMaxDim) return "has no kernel above dim 512";
  if (is_wide(p) && core::is_f8(p.dtype)) return "has no kernel for f8 types above dim 256";
  if (p.page_size > 0) return "has no kernel for paged caches";
  if (p.len_new > 0) return "has no kernel that appends to a cache";
  if (p.dropout && core::is_f8(p.dtype)) return "has no kernel for dropout with f8 types";
  if (p.descale_rows) return "has no kernel with a factor for each row of k and v";
  if (p.layout_q != p.layout_kv) return "takes q, k and v that are all packed or all padded";
  for (const Extent* extent : {&p.bias, &p.mask}) {
    if (extent->given && (!extent->q || !extent->kv)) {
      return "takes no bias or mask that broadcasts queries or keys";
    }
  }
  if (p.bias.given && std::max(p.dim_qk, p.dim_vo) > kMaxBiasDim) {
    return "has no shared memory for a bias above dim 128";
  }
  if (p.mask.given && is_wide(p)) return "has no shared memory for a mask above dim 256";
  return {};
}

std::string size_refusal(const Problem& p, const DeviceFacts& facts) {
  const bool packed = p.layout_q == Layout::packed;
  if (p.batch <= 0 || p.heads_q <= 0 || p.len_q <= 0 || p.len_kv <= 0 ||
      (packed && (p.total_q <= 0 || p.total_kv <= 0))) {
    return "takes no sizes of 0";
  }
  if (p.len_q > kMaxLength || p.len_kv > kMaxLength) return "takes lengths below 2^30";
  const Tiles tiles = choose_tiles(p, facts);
  const TileCounts counts = tile_counts(p, tiles.tile_q, tiles.heads);
  if (counts.num_tiles > kMaxTiles) return "takes fewer than 2^30 tiles";
  const int shared = shared_bytes_of(p, tiles);
  if (shared <= facts.shared_per_block) return {};
  return "needs " + std::to_string(shared) + " bytes of shared memory, a block has " +
         std::to_string(facts.shared_per_block);
}

void set_constants(Config& config, const Problem& p, const Tiles& tiles) {
  // Blocks that share an SM hide each other's latency, so their warpgroups need not overlap.
  const bool alone = tiles.blocks == 1;
  // f32: P V and the next S in flight together need too many registers at dim 128, and with three
  // warpgroups.
  const bool overlap = alone && (!is_split(p) || (tiles.dim == 64 && tiles.tile_q == 128));
  const bool is_f8 = core::is_f8(p.dtype);
  const bool store_elements = p.nonfinite_zero || is_split(p) ||
                              (is_f8 ? p.out_type() == DType::f32 : p.out_type() != p.dtype);
  const DType out = is_f8 && !store_elements ? p.out_type() : is_f8 ? DType::bf16 : p.dtype;
  config.set("dtype", static_cast<int>(p.dtype))
      .set("dtype_kv", static_cast<int>(p.kv_type()))
      .set("dtype_out", static_cast<int>(out))
      .set("raw_stages", tiles.raw_stages)
      .set("accumulate_tiles", accumulate_tiles(p))
      .set("dim_qk", tiles.dim)
      .set("dim_vo", value_columns(p))
      .set("tile_q", tiles.tile_q)
      .set("tile_heads", tiles.heads)
      .set("tile_kv", tiles.tile_kv)
      .set("stages", tiles.stages)
      .set("q_stages", tiles.q_stages)
      .set("blocks", tiles.blocks)
      .set("o_columns", tiles.o_columns)
      .set("producer_warp", tiles.producer_warp)
      .set("value_parts", value_parts(p))
      .set("bf16_parts", bf16_parts(p))
      .set("overlap", overlap)
      .set("pingpong", alone && !is_wide(p))
      .set("schedule", tiles.schedule)
      .set("left_bound", has_left_bound(p))
      .set("right_bound", has_right_bound(p))
      .set("row_ranges", has_row_ranges(p))
      .set("lengths", static_cast<int>(lengths_of(p)))
      .set("softcap", p.softcap)
      .set("alibi", p.alibi)
      .set("dropout", p.dropout)
      .set("bias_type", p.bias.given ? static_cast<int>(p.bias_type()) : 0)
      .set("mask", p.mask.given)
      .set("shared_entries", has_shared_entries(p))
      .set("store_elements", store_elements)
      .set("element_access", false);
}

}  // namespace

TileCounts tile_counts(const Problem& p, std::int64_t tile_q, std::int64_t tile_heads) {
  const std::int64_t q_tiles = core::divide_up(p.len_q, tile_q / tile_heads);
  return {q_tiles, q_tiles * p.heads_q / tile_heads * p.batch * std::max(1, value_parts(p))};
}

std::string forward_refusal(const Problem& p, const DeviceFacts& facts, core::Access access) {
  if (std::string why = type_refusal(p); !why.empty()) return why;
  if (std::string why = option_refusal(p); !why.empty()) return why;
  if (std::string why = size_refusal(p, facts); !why.empty()) return why;
  if (has_few_queries(p) && !core::is_f8(p.dtype)) {
    return "leaves up to " + std::to_string(kFewQueries) + " queries to the decode kernel";
  }
  if (access == core::Access::tma) return {};
  return std::string("needs the access tma, the call's is ") + core::to_string(access);
}

CudaPlan plan_forward(const Problem& p, const DeviceFacts& facts) {
  const Tiles tiles = choose_tiles(p, facts);
  CudaPlan plan(Pass::forward, p);
  add_uncovered_rows(plan, p);
  const TileCounts counts = tile_counts(p, tiles.tile_q, tiles.heads);
  const std::int64_t resident = std::int64_t{facts.num_sms} * tiles.blocks;
  if (tiles.schedule == kDynamic) plan.heads_at_once = heads_at_once(p, facts) / tiles.heads;
  if (tiles.schedule == kDynamic && counts.num_tiles > resident) {
    plan.add("passes/tile_counter.cu", kCounterEntry, device::tile_counter::kThreads, 1);
    plan.workspace = lay_out(p, {.tile_counter = true});
    plan.workspace_bytes = plan.workspace.bytes;
  }
  plan.main = plan.num_kernels;
  // The unit of the paired schedule is two tiles.
  const std::int64_t units = tiles.schedule == kPaired
                                 ? core::divide_up(p.heads_q * p.batch, 2) * counts.q_tiles
                                 : counts.num_tiles;
  const int threads = tiles.tile_q / 64 * 128 + (tiles.producer_warp ? 32 : 128);
  KernelSpec& spec = plan.add("sm90/forward.cu", kForwardEntry, static_cast<unsigned>(threads),
                              std::min(units, resident));
  spec.shared_bytes = static_cast<unsigned>(shared_bytes_of(p, tiles));
  set_constants(spec.config, p, tiles);
  return plan;
}

}  // namespace attn::cuda::sm90
