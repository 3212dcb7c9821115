// The plan of sm90/forward.cu; see forward_plan.hpp.
#include "cuda/families/sm90/forward_plan.hpp"

#include <algorithm>

#include "core/divide_up.hpp"
#include "core/signature.hpp"
#include "cuda/families/few_queries.hpp"
#include "cuda/families/passes.hpp"
#include "cuda/families/shared_entries.hpp"
#include "cuda/kernels/passes/tile_counter.cuh"
#include "cuda/kernels/sm90/forward_shared.cuh"

namespace attn::cuda::sm90 {
namespace {

constexpr std::int64_t kMaxBiasDim = 128;
// Kernels add tiles to lengths, and blocks to tiles, in 32 bits.
constexpr std::int64_t kMaxLength = (std::int64_t{1} << 30) - 1;
constexpr std::int64_t kMaxTiles = (std::int64_t{1} << 30) - 1;
// Causal rows of fewer keys leave too little work for large tiles (dim 64), or too little to pay
// for the counter (dim 128).
constexpr std::int64_t kShortCausalDim64 = 2048;
constexpr std::int64_t kShortCausalDim128 = 1024;
// Keys and values of the heads in work may fill 5/8 of L2; Q, O and scores use the rest.
constexpr std::int64_t kL2PartsForKv = 5;
// f8: tensor cores keep about 14 bits of a sum, and cut off the rest with every 32 keys. In rows of
// more keys than this P V is added up in f32 after every kF8AccumulateTiles tiles (docs: "f8").
constexpr std::int64_t kF8LongRow = 16384;
constexpr int kF8AccumulateTiles = 8;

struct Tiles {
  int dim;
  int tile_q;
  int tile_kv;
  int stages;    // of K and of V
  int q_stages;  // tiles of Q
  int blocks = 1;
  int o_columns = 64;  // of O in shared memory at once
  bool producer_warp = false;
  int raw_stages = 0;  // f8: tiles of V before the transposition; mask: of a warpgroup, as bytes
};

// Measurements: docs/kernels/sm90_forward.md, "Configs and resources" and "Tried".
constexpr Tiles kDim64{.dim = 64, .tile_q = 192, .tile_kv = 128, .stages = 3, .q_stages = 2};
constexpr Tiles kDim64Short{.dim = 64,
                            .tile_q = 128,
                            .tile_kv = 64,
                            .stages = 3,
                            .q_stages = 2,
                            .blocks = 2,
                            .producer_warp = true};
constexpr Tiles kDim64Scores{.dim = 64, .tile_q = 192, .tile_kv = 64, .stages = 3, .q_stages = 2};
// With 128 queries a thread has 232 registers instead of 160: with ranges of keys 71 us instead of
// 99 (16 documents in 4096 rows, H100). With 192 queries packed lengths and an option together
// spill 500 to 1100 bytes, ranges of keys and lengths, a bias or a mask 560 to 840.
constexpr Tiles kDim64Wide{.dim = 64, .tile_q = 128, .tile_kv = 128, .stages = 3, .q_stages = 2};
constexpr Tiles kDim64ScoresWide{
    .dim = 64, .tile_q = 128, .tile_kv = 64, .stages = 3, .q_stages = 2};
constexpr Tiles kDim128{
    .dim = 128, .tile_q = 128, .tile_kv = 128, .stages = 2, .q_stages = 2, .o_columns = 128};
// Tiles of bias and mask take the second stage of Q.
constexpr Tiles kDim128Scores{
    .dim = 128, .tile_q = 128, .tile_kv = 64, .stages = 3, .q_stages = 1, .o_columns = 128};
// A mask alone: bytes wait in raw stages of 64 queries until they are bits.
constexpr Tiles kDim64Mask{
    .dim = 64, .tile_q = 192, .tile_kv = 128, .stages = 3, .q_stages = 2, .raw_stages = 6};
constexpr Tiles kDim64MaskWide{
    .dim = 64, .tile_q = 128, .tile_kv = 128, .stages = 3, .q_stages = 2, .raw_stages = 6};
constexpr Tiles kDim128Mask{.dim = 128,
                            .tile_q = 128,
                            .tile_kv = 128,
                            .stages = 2,
                            .q_stages = 1,
                            .o_columns = 128,
                            .raw_stages = 3};
constexpr Tiles kDim256Mask{
    .dim = 256, .tile_q = 128, .tile_kv = 64, .stages = 2, .q_stages = 1, .raw_stages = 4};
// O takes 128 registers of a thread and Q 64 KB.
constexpr Tiles kDim256{.dim = 256, .tile_q = 128, .tile_kv = 64, .stages = 2, .q_stages = 1};

// f8: half the bytes, one buffer more for V, and P takes half the registers.
constexpr Tiles kF8Dim64{
    .dim = 64, .tile_q = 192, .tile_kv = 128, .stages = 3, .q_stages = 2, .raw_stages = 2};
constexpr Tiles kF8Dim64Wide{
    .dim = 64, .tile_q = 128, .tile_kv = 128, .stages = 3, .q_stages = 2, .raw_stages = 2};
constexpr Tiles kF8Dim64Scores{
    .dim = 64, .tile_q = 128, .tile_kv = 64, .stages = 3, .q_stages = 2, .raw_stages = 2};
constexpr Tiles kF8Dim128{.dim = 128,
                          .tile_q = 128,
                          .tile_kv = 128,
                          .stages = 3,
                          .q_stages = 2,
                          .o_columns = 128,
                          .raw_stages = 2};
// Three warpgroups instead of two: faster from 2048 keys on.
constexpr std::int64_t kF8ManyKeys = 2048;
constexpr Tiles kF8Dim128Long{.dim = 128,
                              .tile_q = 192,
                              .tile_kv = 64,
                              .stages = 3,
                              .q_stages = 1,
                              .o_columns = 128,
                              .raw_stages = 2};
constexpr Tiles kF8Dim128Scores{.dim = 128,
                                .tile_q = 128,
                                .tile_kv = 64,
                                .stages = 2,
                                .q_stages = 1,
                                .o_columns = 128,
                                .raw_stages = 2};
constexpr Tiles kF8Dim256{
    .dim = 256, .tile_q = 128, .tile_kv = 64, .stages = 3, .q_stages = 1, .raw_stages = 2};

bool has_left_bound(const Problem& p) {
  return p.window_left.has_value();
}
bool has_right_bound(const Problem& p) {
  return p.causal || p.window_right.has_value();
}
bool has_row_ranges(const Problem& p) {
  return p.kv_begin || p.kv_end;
}
Lengths lengths_of(const Problem& p) {
  if (p.layout_q == Layout::packed) return kPacked;
  return p.lengths_q || p.lengths_kv ? kPadded : kNoLengths;
}
// Full or causal and nothing else: some Configs were measured for these alone.
bool is_plain(const Problem& p) {
  return !p.window_right && !has_left_bound(p) && !has_row_ranges(p) &&
         lengths_of(p) == kNoLengths && !p.softcap && !p.alibi && !p.bias.given && !p.mask.given &&
         !p.dropout;
}
bool is_plain_causal(const Problem& p) {
  return p.causal && is_plain(p);
}

// f8: tiles of keys whose P V the tensor cores sum up; 0: all. At dim 256 no registers are left for
// the sums in f32.
int accumulate_tiles(const Problem& p) {
  const bool long_rows = core::is_f8(p.dtype) && p.len_kv > kF8LongRow;
  return long_rows && std::max(p.dim_qk, p.dim_vo) <= 128 ? kF8AccumulateTiles : 0;
}

Tiles f8_tiles_of(const Problem& p) {
  const std::int64_t dim = std::max(p.dim_qk, p.dim_vo);
  const bool scores = p.bias.given || p.mask.given;
  if (dim > 128) return kF8Dim256;
  if (dim > 64) {
    if (scores) return kF8Dim128Scores;
    const bool many_keys = p.len_kv >= kF8ManyKeys && accumulate_tiles(p) == 0;
    return is_plain(p) && many_keys ? kF8Dim128Long : kF8Dim128;
  }
  if (scores) return kF8Dim64Scores;
  const bool wide = has_row_ranges(p) || accumulate_tiles(p) > 0 ||
                    (lengths_of(p) == kPacked && (p.softcap || p.alibi || has_left_bound(p)));
  return wide ? kF8Dim64Wide : kF8Dim64;
}

// The kernel turns the mask into bits.
bool has_mask_bits(const Problem& p) {
  return p.mask.given && !p.bias.given && !core::is_f8(p.dtype);
}

Tiles mask_tiles_of(const Problem& p) {
  const std::int64_t dim = std::max(p.dim_qk, p.dim_vo);
  if (dim > 128) return kDim256Mask;
  if (dim > 64) return kDim128Mask;
  const bool wide = has_row_ranges(p) || lengths_of(p) == kPacked;
  return wide ? kDim64MaskWide : kDim64Mask;
}

Tiles tiles_of(const Problem& p) {
  if (core::is_f8(p.dtype)) return f8_tiles_of(p);
  if (has_mask_bits(p)) return mask_tiles_of(p);
  const std::int64_t dim = std::max(p.dim_qk, p.dim_vo);
  const bool scores = p.bias.given || p.mask.given;
  if (dim > 128) return kDim256;
  if (dim > 64) return scores ? kDim128Scores : kDim128;
  if (scores) return has_row_ranges(p) ? kDim64ScoresWide : kDim64Scores;
  if (lengths_of(p) == kPacked && (p.softcap || p.dropout || p.alibi || has_left_bound(p))) {
    return kDim64Wide;
  }
  if (has_row_ranges(p)) return kDim64Wide;
  return is_plain_causal(p) && p.len_kv < kShortCausalDim64 ? kDim64Short : kDim64;
}

// Rows of equal work need no counter; the counter balances all others. Pairs of a long and a short
// row tile win in short causal rows of dim 128.
Schedule schedule_of(const Problem& p, const Tiles& tiles) {
  const bool equal_rows = !has_left_bound(p) && !has_right_bound(p) && !has_row_ranges(p) &&
                          lengths_of(p) == kNoLengths;
  if (equal_rows && tiles.dim > 64) return kStatic;
  if (is_plain_causal(p) && p.len_q == p.len_kv && tiles.dim == 128 &&
      p.len_kv < kShortCausalDim128) {
    return kPaired;
  }
  return kDynamic;
}

// Query heads whose keys and values fit L2 together.
int heads_at_once(const Problem& p, const DeviceFacts& facts) {
  const std::int64_t head_bytes = p.len_kv * (p.dim_qk + p.dim_vo) * size_of(p.dtype);
  const std::int64_t kv_heads =
      std::max<std::int64_t>(1, facts.l2_bytes / 8 * kL2PartsForKv / head_bytes);
  return static_cast<int>(std::min(kv_heads * (p.heads_q / p.heads_kv), p.heads_q * p.batch));
}

int shared_bytes_of(const Problem& p, const Tiles& tiles) {
  const auto bias_bytes = p.bias.given ? size_of(p.bias_type()) : 0;
  return device::sm90::ForwardSharedOf({.tile_q = tiles.tile_q,
                                        .tile_kv = tiles.tile_kv,
                                        .stages = tiles.stages,
                                        .q_stages = tiles.q_stages,
                                        .dim_qk = tiles.dim,
                                        .dim_vo = tiles.dim,
                                        .o_columns = tiles.o_columns,
                                        .score_bytes = static_cast<int>(bias_bytes) +
                                                       (p.mask.given && !has_mask_bits(p) ? 1 : 0),
                                        .element_bytes = static_cast<int>(size_of(p.dtype)),
                                        .raw_stages = tiles.raw_stages,
                                        .mask_bits = has_mask_bits(p)})
      .bytes;
}

std::string type_refusal(const Problem& p) {
  if (core::is_f8(p.dtype)) return {};  // k and v may be of the other f8 type
  if (p.dtype != DType::f16 && p.dtype != DType::bf16) {
    return std::string("has no kernel for ") + to_string(p.dtype);
  }
  if (p.kv_type() != p.dtype) return "has no kernel for k and v of another type than q";
  return {};
}

std::string option_refusal(const Problem& p) {
  if (std::max(p.dim_qk, p.dim_vo) > kDim256.dim) return "has no kernel above dim 256";
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
  return {};
}

std::string size_refusal(const Problem& p, const DeviceFacts& facts) {
  const bool packed = p.layout_q == Layout::packed;
  if (p.batch <= 0 || p.heads_q <= 0 || p.len_q <= 0 || p.len_kv <= 0 ||
      (packed && (p.total_q <= 0 || p.total_kv <= 0))) {
    return "takes no sizes of 0";
  }
  if (p.len_q > kMaxLength || p.len_kv > kMaxLength) return "takes lengths below 2^30";
  const Tiles tiles = tiles_of(p);
  if (tile_counts(p, tiles.tile_q).num_tiles > kMaxTiles) return "takes fewer than 2^30 tiles";
  const int shared = shared_bytes_of(p, tiles);
  if (shared <= facts.shared_per_block) return {};
  return "needs " + std::to_string(shared) + " bytes of shared memory, a block has " +
         std::to_string(facts.shared_per_block);
}

void set_constants(Config& config, const Problem& p, const Tiles& tiles, Schedule schedule) {
  // Blocks that share an SM hide each other's latency, so their warpgroups need not overlap.
  const bool alone = tiles.blocks == 1;
  const bool is_f8 = core::is_f8(p.dtype);
  const bool store_elements =
      p.nonfinite_zero || (is_f8 ? p.out_type() == DType::f32 : p.out_type() != p.dtype);
  const DType out = is_f8 && !store_elements ? p.out_type() : is_f8 ? DType::bf16 : p.dtype;
  config.set("dtype", static_cast<int>(p.dtype))
      .set("dtype_kv", static_cast<int>(p.kv_type()))
      .set("dtype_out", static_cast<int>(out))
      .set("raw_stages", tiles.raw_stages)
      .set("accumulate_tiles", accumulate_tiles(p))
      .set("dim_qk", tiles.dim)
      .set("dim_vo", tiles.dim)
      .set("tile_q", tiles.tile_q)
      .set("tile_kv", tiles.tile_kv)
      .set("stages", tiles.stages)
      .set("q_stages", tiles.q_stages)
      .set("blocks", tiles.blocks)
      .set("o_columns", tiles.o_columns)
      .set("producer_warp", tiles.producer_warp)
      .set("overlap", alone)
      .set("pingpong", alone)
      .set("schedule", static_cast<int>(schedule))
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

TileCounts tile_counts(const Problem& p, std::int64_t tile_q) {
  const std::int64_t q_tiles = core::divide_up(p.len_q, tile_q);
  return {q_tiles, q_tiles * p.heads_q * p.batch};
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
  const Tiles tiles = tiles_of(p);
  const Schedule schedule = schedule_of(p, tiles);
  CudaPlan plan(Pass::forward, p);
  add_uncovered_rows(plan, p);
  if (schedule == kDynamic) {
    plan.add("passes/tile_counter.cu", kCounterEntry, device::tile_counter::kThreads, 1);
    plan.workspace = lay_out(p, {.tile_counter = true});
    plan.workspace_bytes = plan.workspace.bytes;
    plan.heads_at_once = heads_at_once(p, facts);
  }
  plan.main = plan.num_kernels;
  const TileCounts counts = tile_counts(p, tiles.tile_q);
  // Paired tiles are taken in twos.
  const std::int64_t units = schedule == kPaired
                                 ? core::divide_up(p.heads_q * p.batch, 2) * counts.q_tiles
                                 : counts.num_tiles;
  const std::int64_t resident = std::int64_t{facts.num_sms} * tiles.blocks;
  const int threads = tiles.tile_q / 64 * 128 + (tiles.producer_warp ? 32 : 128);
  KernelSpec& spec = plan.add("sm90/forward.cu", kForwardEntry, static_cast<unsigned>(threads),
                              std::min(units, resident));
  spec.shared_bytes = static_cast<unsigned>(shared_bytes_of(p, tiles));
  set_constants(spec.config, p, tiles, schedule);
  return plan;
}

}  // namespace attn::cuda::sm90
