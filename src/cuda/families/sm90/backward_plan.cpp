// The plan of sm90/backward.cu; see backward_plan.hpp.
#include "cuda/families/sm90/backward_plan.hpp"

#include <algorithm>

#include "core/divide_up.hpp"
#include "core/visibility.hpp"
#include "cuda/families/bias_gradient.hpp"
#include "cuda/families/shared_entries.hpp"
#include "cuda/families/sm90/backward_head_plan.hpp"
#include "cuda/families/sm90/backward_wide_plan.hpp"
#include "cuda/families/sm90/bias_gradient_plan.hpp"
#include "cuda/kernels/passes/backward_postprocess.cuh"
#include "cuda/kernels/passes/backward_preprocess.cuh"
#include "cuda/kernels/passes/sink_gradient.cuh"
#include "cuda/kernels/passes/uncovered_rows.cuh"
#include "cuda/kernels/sm90/backward_shared.cuh"

namespace attn::cuda::sm90 {
namespace {

// The kernel adds distances to lengths in 32 bits.
constexpr std::int64_t kMaxBackwardLength = (std::int64_t{1} << 29) - 1;

// With kv_begin or kv_end, a block keeps a list in shared memory of the tiles of queries to visit.
constexpr std::int64_t kMaxRangedTiles = 1 << 16;

struct BackwardTiles {
  int dim;
  int tile_q;
};

bool is_packed(Layout layout) {
  return layout == Layout::packed;
}

// Whether gradients are stored element by element.
bool stores_elements(const Problem& p) {
  return p.accumulate || p.nonfinite_zero || p.grad_type() != p.dtype;
}

// Whether consumers write the final dq of tiles of queries that see one tile of keys alone, as most
// do in documents, and the postprocess skips them. Not with lengths: dq of rows past a length
// becomes 0 because their sums were zeroed. Not where gradients are stored by elements: the
// postprocess converts such rows in a loop that knows no tiles. Not with options that would spill:
// dropout with another one up to 384 bytes, softcap with ALiBi 60, a mask of keys 16.
bool writes_sole_dq(const Problem& p) {
  const bool mask_of_keys = p.mask.given && !p.mask.q;
  const bool changes_scores = p.softcap || p.alibi || p.bias.given || p.mask.given;
  const bool spills = (p.dropout && changes_scores) || (p.softcap && p.alibi) || mask_of_keys;
  return p.dq && has_row_ranges(p) && !has_lengths(p) && !stores_elements(p) &&
         !needs_wide_backward(p) && !spills;
}
int shared_bytes_of(const Problem& p, const BackwardTiles& tiles) {
  if (needs_wide_backward(p)) return wide_backward_shared_bytes(p);
  return device::sm90::BackwardSharedOf(
             tiles.tile_q, tiles.dim, has_row_ranges(p),
             score_bytes_of(p, tiles.tile_q, device::sm90::kBackwardTileKv))
             .bytes +
         visit_bytes_of(p, tiles.tile_q);
}

// At dim 64, tiles of 64 queries are 8 % slower than tiles of 128. At dim 128, more than 64 queries
// exceed shared memory. With 128 queries, softcap with ALiBi, a bias or dropout exceeds the
// registers, and some biases and masks exceed shared memory. Those problems use the tiles of dim
// 128, at the cost of products with zeros in the columns past 64.
BackwardTiles backward_tiles_of(const Problem& p) {
  constexpr BackwardTiles kDim64{.dim = 64, .tile_q = 128};
  constexpr BackwardTiles kDim128{.dim = 128, .tile_q = 64};
  if (needs_wide_backward(p)) return {.dim = wide_backward_dim(p), .tile_q = kWideTileQ};
  if (std::max(p.dim_qk, p.dim_vo) > 64) return kDim128;
  if (p.softcap && (p.alibi || p.dropout || p.bias.given)) return kDim128;
  return shared_bytes_of(p, kDim64) <= kSharedPerBlock ? kDim64 : kDim128;
}

std::string backward_type_refusal(const Problem& p) {
  if (p.dtype != DType::f16 && p.dtype != DType::bf16) {
    return std::string("has no kernel for ") + to_string(p.dtype);
  }
  if (p.kv_type() != p.dtype) return "has no kernel for k and v of another type than q";
  if (p.out_type() != p.dtype) return "has no backward for o of another type than q";
  return {};
}

std::string backward_option_refusal(const Problem& p) {
  if (p.dbias && !(p.dq || p.dk || p.dv)) return "has no kernel for the gradient of a bias alone";
  // Loading the f32 tile and the derivative of softcap need more registers than there are: 772
  // bytes would spill.
  const bool f32_tile = p.bias.given && p.bias.q && p.bias_type() == DType::f32;
  if (p.softcap && f32_tile && !needs_wide_backward(p)) {
    return "has no backward with softcap and an f32 bias up to dim 128";
  }
  // ptxas has too few registers for asynchronous wgmma and serializes it (C7512).
  const bool f16_row = p.bias.given && !p.bias.q && p.bias_type() == DType::f16;
  if (f16_row && p.dtype == DType::f16 && !needs_wide_backward(p) &&
      backward_tiles_of(p).dim == 128) {
    return "has no backward in f16 with an f16 bias that broadcasts queries, at dims 65 to 128 or "
           "with softcap";
  }
  for (const Extent* extent : {&p.bias, &p.mask}) {
    if (extent->given && !extent->kv) return "takes no bias or mask that broadcasts keys";
  }
  return {};
}

std::string size_refusal(const Problem& p) {
  if (p.batch <= 0 || p.heads_q <= 0 || p.len_q <= 0 || p.len_kv <= 0 ||
      (is_packed(p.layout_q) && p.total_q <= 0) || (is_packed(p.layout_kv) && p.total_kv <= 0)) {
    return "takes no sizes of 0";
  }
  if (p.len_q > kMaxBackwardLength || p.len_kv > kMaxBackwardLength)
    return "takes lengths below 2^29";
  const std::int64_t most = kMaxRangedTiles * backward_tiles_of(p).tile_q;
  if (has_row_ranges(p) && p.len_q > most) {
    return "takes up to " + std::to_string(most) + " queries with kv_begin or kv_end";
  }
  const int shared = shared_bytes_of(p, backward_tiles_of(p));
  if (shared > kSharedPerBlock) {
    return "needs " + std::to_string(shared) + " bytes of shared memory, a block has " +
           std::to_string(kSharedPerBlock);
  }
  return {};
}

bool is_causal_alone(const Problem& p) {
  const core::Band band = core::band_of(p, 0);
  return band.right != core::Band::kUnlimited && band.left == core::Band::kUnlimited;
}

// Whether the first block of a tile of dq stores instead of adding, so that dq_accum need not be
// set to zero: up to 1.2 times as fast with few keys. In deterministic order, the first block is
// known. Otherwise blocks determine it by a semaphore. That costs up to 8 % at dim 128 with many
// keys, and less with causal, where blocks begin at different queries.
bool pays_to_store_first(const Problem& p) {
  if (p.deterministic || std::max(p.dim_qk, p.dim_vo) <= 64) return true;
  return p.len_kv <= (is_causal_alone(p) ? 2048 : 1024);
}

// The number of key heads that are scheduled together.
//
// With causal, tiles of keys have different numbers of queries, so blocks of several heads are
// interleaved, longest first. If heads ran one after another, SMs could be idle at the end for as
// long as the longest block runs. Each SM gets 1.5 blocks, so that L2 still holds the queries of
// these heads.
//
// In deterministic order, tile n of a head adds to each dQ after tile n - 1, so it must start a
// little later. With causal it does: its first tile of queries is a later one. Otherwise heads are
// interleaved that fill the SMs together. They end in the same order, tile by tile, and so the
// tiles of the next heads start in theirs. One head after another: several tiles start where one
// ended, and all but the first wait. 1024 rows, full: 493 TFLOP/s instead of 434 (dim 128, H200).
// Above dim 128, the queries of these heads should take a third of L2 at most: 1024 rows, full, 8
// heads 341 TFLOP/s, 4 heads 317; with 4 query heads per key head, 4 heads 359, 10 heads 345.
constexpr std::int64_t kLeastWideHeads = 4;
constexpr std::int64_t kMostWideQueries = 8192;
int kv_heads_at_once(const Problem& p, int tile_kv, int num_slots) {
  const core::Band band = core::band_of(p, 0);
  const bool is_full = band.left == core::Band::kUnlimited && band.right == core::Band::kUnlimited;
  const bool interleaves = p.deterministic ? is_full : is_causal_alone(p);
  if (!interleaves || has_row_ranges(p)) return 1;
  const std::int64_t tiles = core::divide_up(p.len_kv, std::int64_t{tile_kv});
  std::int64_t heads = core::divide_up(std::int64_t{num_slots} * 3 / 2, tiles);
  if (p.deterministic) heads = num_slots / tiles;
  if (p.deterministic && needs_wide_backward(p)) {
    const std::int64_t queries = p.len_q * (p.heads_q / p.heads_kv);  // of a key head
    heads = std::min(heads, std::max(kLeastWideHeads, kMostWideQueries / queries));
  }
  return static_cast<int>(std::clamp<std::int64_t>(heads, 1, p.heads_kv * p.batch));
}

// With causal in deterministic order: the number of key heads at the end whose longest blocks start
// first (BlockPlace in kernels/sm90/backward_keys.cuh). As many as fill the SMs once, so that no SM
// waits for a long block at the end, and L2 holds their queries. In a model of the kernel one head
// more or less costs 5 to 10 % where heads are few.
int kv_heads_reversed(const Problem& p, int tile_kv, int num_slots) {
  if (!p.dq || !p.deterministic || !is_causal_alone(p) || has_row_ranges(p)) return 0;
  const std::int64_t heads = num_slots / core::divide_up(p.len_kv, std::int64_t{tile_kv});
  return static_cast<int>(std::clamp<std::int64_t>(heads, 1, p.heads_kv * p.batch));
}

// How dbias is computed.
enum class Dbias {
  none,
  stored,      // the main kernel stores tiles of rounded dS by TMA
  summed,      // the main kernel adds to f32 sums in global memory; another kernel converts them
  apart,       // sm80/bias_gradient.cu computes it
  apart_sm90,  // sm90/bias_gradient.cu computes it
};
static_assert(static_cast<int>(Dbias::stored) == device::sm90::kDbiasStored);
static_assert(static_cast<int>(Dbias::summed) == device::sm90::kDbiasSummed);

// Whether Dbias::summed is faster than Dbias::apart. It saves the two matrix products of the
// separate kernel. It pays off if half of L2 holds the sums that one sequence adds to, and if
// enough sequences share the cost of zeroing and converting the sums. Dbias::apart_sm90 is faster
// than both (docs/kernels/sm90_backward_dbias.md). Microseconds, summed then apart:
//   512 sequences of 512 rows, 4 heads     dim 32: 1448, 1769; dim 64: 1548, 2221 (H200)
//   1024 sequences of 1024 rows, 4 heads   dim 32: 9813, 11760 (H200; 16 MiB of sums)
//   1536 sequences of 1536 rows, 4 heads   dim 32: 39659, 39786 (H200; 36 MiB); summed 55935 (H100)
//   4 sequences of 4096 rows, 16 heads     dim 64: 4716, 3527 (H200; 1 GiB)
// With 8 sequences per entry, zeroing and converting are estimated to take half of the saved time.
bool pays_to_sum_dbias(const Problem& p, const DeviceFacts& facts) {
  constexpr std::int64_t kLeastSharers = 8;
  constexpr std::int64_t kMostDim = 64;
  if (std::max(p.dim_qk, p.dim_vo) > kMostDim || p.bias.sharers(p.batch) < kLeastSharers) {
    return false;
  }
  return dbias_accum_fits(p, p.bias.entries(p.batch) * facts.l2_bytes / 2);
}

Dbias dbias_of(const Problem& p, const DeviceFacts& facts) {
  if (!p.dbias) return Dbias::none;
  const bool one_owner =
      p.bias.q && p.bias.sharers(p.batch) == 1 && (p.bias.head || p.heads_q == 1);
  const bool as_rounded = p.dbias_type() == p.dtype && !p.accumulate && !p.nonfinite_zero;
  // With softcap, the kernel's dS is the gradient before the cap; the bias is added after the cap.
  if (needs_wide_backward(p) || p.softcap) return Dbias::apart;
  if (one_owner && as_rounded) return Dbias::stored;
  const bool sums = pays_to_sum_dbias(p, facts) && can_sum_bias_gradient(p, facts);
  if (takes_bias_gradient_sm90(p) && !(sums && has_few_bias_gradient_tiles(p))) {
    return Dbias::apart_sm90;
  }
  return sums ? Dbias::summed : Dbias::apart;
}

// The partial sums of dbias.
int dbias_splits(const Problem& p, const DeviceFacts& facts, Dbias dbias) {
  if (dbias == Dbias::apart) return bias_gradient_splits(p, facts);
  return dbias == Dbias::apart_sm90 ? bias_gradient_splits_sm90(p, facts) : 1;
}

constexpr std::int64_t kMostPersistentQueries = 2048;

// Whether blocks are persistent, which hides the prologue of each tile of keys. A prologue takes as
// long as one or two steps of the main loop. Not with options, because they would spill more. In
// deterministic order it is faster with any number of queries: 4096 rows at dim 128, full, reach
// 580 TFLOP/s instead of 531 (H200).
bool is_persistent(const Problem& p, const BackwardTiles& tiles, Dbias dbias,
                   std::int64_t num_sms) {
  const bool options = p.softcap || p.alibi || p.dropout || p.bias.given || p.mask.given;
  if (options || stores_elements(p) || has_lengths(p) || has_row_ranges(p) || tiles.dim > 128 ||
      dbias != Dbias::none || num_key_tiles(p) <= num_sms) {
    return false;
  }
  // Grouped query heads with causal are slower: 209 TFLOP/s instead of 237 (4 query heads per key
  // head, 512 keys, dim 128, H100).
  if (p.heads_q > p.heads_kv && is_causal_alone(p)) return false;
  if (p.dq && p.deterministic) return true;
  const core::Band band = core::band_of(p, 0);
  std::int64_t queries = p.len_q;  // the most that a tile of keys visits
  if (band.left != core::Band::kUnlimited && band.right != core::Band::kUnlimited) {
    const std::int64_t width = std::min(band.left, p.len_q) + std::min(band.right, p.len_q);
    queries = std::min(queries, width + device::sm90::kBackwardTileKv);
  }
  return queries * (p.heads_q / p.heads_kv) <= kMostPersistentQueries;
}

void add_narrow_backward(const Problem& p, const BackwardTiles& tiles, Dbias dbias, int blocks,
                         CudaPlan& plan) {
  constexpr int kThreads = 128 * (1 + device::sm90::kBackwardWarpgroups);
  KernelSpec& main = plan.add("sm90/backward.cu", kBackwardEntry, kThreads,
                              blocks > 0 ? blocks : num_key_tiles(p));
  main.shared_bytes = static_cast<unsigned>(shared_bytes_of(p, tiles));
  // backward_items.cuh. In deterministic order, blocks would wait for tiles that others have taken
  // early but not begun: 80 instead of 283 TFLOP/s (dim 64, 1024 causal keys, H200).
  const bool takes_late = tiles.dim == 128 || (p.dq && p.deterministic);
  const bool stored_or_summed = dbias == Dbias::stored || dbias == Dbias::summed;
  const int takes = takes_late ? device::sm90::kTakesLate : device::sm90::kTakesEarly;
  main.config.set("dtype", static_cast<int>(p.dtype))
      .set("dim", tiles.dim)
      .set("tile_q", tiles.tile_q)
      .set("tile_kv", device::sm90::kBackwardTileKv)
      .set("blocks", 1)
      // kv_begin or kv_end without `lengths` would spill 16 bytes at dim 64.
      .set("lengths", has_lengths(p) || has_row_ranges(p))
      .set("persistent", blocks > 0 ? takes : 0)
      .set("dbias", stored_or_summed ? static_cast<int>(dbias) : 0);
  set_options(main.config, p);
}

}  // namespace

bool every_row_sees_a_key(const Problem& p) {
  if (has_lengths(p) || has_row_ranges(p)) return false;
  const core::Band band = core::band_of(p, 0);
  const bool is_bounded =
      band.left != core::Band::kUnlimited || band.right != core::Band::kUnlimited;
  if (p.diagonal == Diagonal::explicit_value && is_bounded) return false;
  const std::int64_t diag = band.bottom_right ? p.len_kv - p.len_q : 0;
  const auto sees = [&](std::int64_t row) {
    const core::KeyRange keys = core::keys_in(band, row, diag, p.len_kv);
    return keys.begin < keys.end;
  };
  return sees(0) && sees(p.len_q - 1);
}

std::int64_t num_key_tiles(const Problem& p) {
  return core::divide_up(p.len_kv, std::int64_t{device::sm90::kBackwardTileKv}) * p.heads_kv *
         p.batch;
}

int score_bytes_of(const Problem& p, int tile_q, int tile_kv) {
  const auto operand = [](const Extent& extent, DType type) {
    const std::int64_t bytes = extent.given ? size_of(type) : 0;
    return device::sm90::ScoreOperand{static_cast<int>(bytes), extent.given && !extent.q};
  };
  return device::sm90::ScoreTilesOf(tile_q, tile_kv, operand(p.bias, p.bias_type()),
                                    operand(p.mask, DType::u8))
      .bytes;
}

int visit_bytes_of(const Problem& p, std::int64_t tile_q) {
  if (!has_row_ranges(p)) return 0;
  return device::sm90::BackwardVisitBytes(static_cast<int>(core::divide_up(p.len_q, tile_q)),
                                          writes_sole_dq(p));
}

void set_options(Config& config, const Problem& p) {
  config.set("left_bound", p.window_left.has_value())
      .set("row_ranges", has_row_ranges(p))
      .set("store_elements", stores_elements(p))
      .set("writes_sole_dq", writes_sole_dq(p))
      .set("softcap", p.softcap)
      .set("alibi", p.alibi)
      .set("dropout", p.dropout)
      .set("bias_type", p.bias.given ? static_cast<int>(p.bias_type()) : 0)
      .set("bias_row", p.bias.given && !p.bias.q)
      .set("mask", p.mask.given)
      .set("mask_row", p.mask.given && !p.mask.q)
      .set("shared_entries", has_shared_entries(p))
      .set("element_access", false);
}

std::string backward_refusal(const Problem& p, core::Access access) {
  if (std::string why = backward_type_refusal(p); !why.empty()) return why;
  if (std::string why = backward_option_refusal(p); !why.empty()) return why;
  if (!takes_backward_dims(p)) return "has no backward above dim 512";
  if (std::string why = size_refusal(p); !why.empty()) return why;
  if (access == core::Access::tma) return {};
  return std::string("needs the access tma, the call's is ") + core::to_string(access);
}

CudaPlan plan_backward(const Problem& p, const DeviceFacts& facts) {
  const BackwardTiles tiles = backward_tiles_of(p);
  const Dbias dbias = dbias_of(p, facts);
  CudaPlan plan(Pass::backward, p);
  if (pays_to_own_heads(p, facts)) {
    add_head_backward(p, facts, plan);
    return plan;
  }
  const bool wide = needs_wide_backward(p);
  const bool ordered = p.dq && p.deterministic;
  // The postprocess reads no sums of tiles without keys: see writes_sole_dq().
  const bool sums_are_stored = every_row_sees_a_key(p) || writes_sole_dq(p);
  const bool first_stores = p.dq && !wide && sums_are_stored && pays_to_store_first(p);
  const int tile_kv = wide ? wide_backward_tile_kv(p) : device::sm90::kBackwardTileKv;
  const int cluster = wide_backward_cluster(p);
  const int num_slots = facts.num_sms / cluster;  // tiles of keys that run at a time
  const int semaphores = device::sm90::kBackwardWarpgroups * cluster;
  const bool persistent = !wide && is_persistent(p, tiles, dbias, facts.num_sms);
  plan.workspace = lay_out(p, {.tile_q = tiles.tile_q,
                               .dim = p.dq ? tiles.dim : 0,
                               .dq_semaphores = ordered || first_stores ? semaphores : 0,
                               .dq_ordered = ordered,
                               .dq_first_stores = first_stores,
                               .kv_heads_at_once = kv_heads_at_once(p, tile_kv, num_slots),
                               .kv_heads_reversed = kv_heads_reversed(p, tile_kv, num_slots),
                               .splits = dbias_splits(p, facts, dbias),
                               .dbias_accum = dbias == Dbias::summed,
                               .tile_counter = persistent});
  plan.workspace_bytes = plan.workspace.bytes;
  KernelSpec& before = plan.add("passes/backward_preprocess.cu", "attn_backward_preprocess",
                                device::backward_preprocess::kThreads,
                                core::divide_up(p.len_q, tiles.tile_q) * p.heads_q * p.batch);
  before.config.set("tile_q", tiles.tile_q);
  if (is_packed(p.layout_kv) && (p.dk || p.dv) && !p.accumulate) {
    plan.add("passes/uncovered_rows.cu", "attn_uncovered_gradients",
             device::uncovered_rows::kThreads,
             core::divide_up(p.total_kv, device::uncovered_rows::kRows));
  }
  plan.main = plan.num_kernels;
  if (wide) {
    add_wide_backward(p, plan);
  } else {
    add_narrow_backward(p, tiles, dbias, persistent ? facts.num_sms : 0, plan);
  }
  if (p.dq) {
    const bool packed = is_packed(p.layout_q);
    plan.add("passes/backward_postprocess.cu", "attn_backward_postprocess",
             device::backward_postprocess::kThreads,
             core::divide_up(packed ? p.total_q : p.len_q,
                             std::int64_t{device::backward_postprocess::kRows}) *
                 p.heads_q * (packed ? 1 : p.batch))
        .config.set("sole_tile_q", writes_sole_dq(p) ? tiles.tile_q : 0)
        .set("sole_tile_kv", writes_sole_dq(p) ? tile_kv : 0);
  }
  if (dbias == Dbias::apart) add_bias_gradient(plan, p, facts, false);
  if (dbias == Dbias::apart_sm90) add_bias_gradient_sm90(plan, p, facts, tiles.tile_q);
  if (dbias == Dbias::summed) add_bias_gradient_convert(plan, p);
  if (p.dsink) {
    plan.add("passes/sink_gradient.cu", "attn_sink_gradient", device::sink_gradient::kThreads,
             p.heads_q);
  }
  return plan;
}

}  // namespace attn::cuda::sm90
