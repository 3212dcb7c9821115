// Tiles of sm90/forward.cu; see forward_tiles.hpp.
#include "cuda/families/sm90/forward_tiles.hpp"

#include <algorithm>
#include <optional>

#include "core/divide_up.hpp"
#include "core/signature.hpp"
#include "cuda/families/sm90/backward_plan.hpp"
#include "cuda/families/sm90/forward_plan.hpp"
#include "cuda/families/sm90/forward_tuning.hpp"
#include "cuda/families/tuned.hpp"
#include "cuda/kernels/sm90/forward_shared.cuh"

namespace attn::cuda::sm90 {
namespace {

// Dim 64: rows that see fewer keys have too little work for large tiles. Measured: windows of 256
// keys are faster with small tiles, of 512 level.
constexpr std::int64_t kShortCausalDim64 = 2048;
constexpr std::int64_t kShortWindow = 384;
// A tile of queries with one or two tiles of keys is mostly loads and stores. With several small
// tiles per SM these overlap. Measured up to this number of keys: 1.3 to 3 times as fast with up to
// 64 queries, 1.2 times with 128 at dim 64. With 2048 keys small tiles are level.
constexpr std::int64_t kFewKeys = 128;
constexpr std::int64_t kManyHeads = 512;  // in all sequences, so that there are several per SM
constexpr int kGroupRows = 64;            // of a warpgroup
constexpr int kFewestHeadRows = 16;       // of a warp
// Dims 128 and 256, causal: up to this number of keys, pairs of a long and a short tile are faster
// than the tile counter, which needs a launch of its own: by 1 to 2 % (dim 128) and 2 to 8 % (dim
// 256). With 16384 keys the counter is 4 % faster.
constexpr std::int64_t kMostPairedKeys = 4096;
constexpr std::int64_t kMostPairedKeysOtherTypes = 1023;  // f8 and f32
// f8: tensor cores truncate a sum after every 32 keys, so that a sum of many terms of one sign
// comes out too small. With more keys than this, P V is added to f32 sums after some tiles of keys:
// after each one up to dim 128, where that costs no spills (docs/kernels/sm90_forward.md, "f8").
constexpr std::int64_t kF8LongRow = 512;
constexpr std::int64_t kF8LongRowDim256 = 1024;
constexpr int kF8AccumulateTilesDim256 = 8;

// Measurements: docs/kernels/sm90_forward.md, "Configs and resources" and "Tried".
constexpr Tiles kDim64{.dim = 64, .tile_q = 192, .tile_kv = 128, .stages = 3, .q_stages = 2};
// For rows that see few keys. Two blocks per SM hide the start and end of a tile of queries.
constexpr Tiles kDim64Short{.dim = 64,
                            .tile_q = 128,
                            .tile_kv = 64,
                            .stages = 3,
                            .q_stages = 2,
                            .blocks = 2,
                            .producer_warp = true};
constexpr Tiles kDim64Few{.dim = 64,
                          .tile_q = 64,
                          .tile_kv = 64,
                          .stages = 2,
                          .q_stages = 2,
                          .blocks = 3,
                          .producer_warp = true};
constexpr Tiles kDim64Scores{.dim = 64, .tile_q = 192, .tile_kv = 64, .stages = 3, .q_stages = 2};
// With 192 queries, packed lengths with an option spill 500 to 1100 bytes; kv_begin or kv_end with
// a bias or a mask 560 to 840.
constexpr Tiles kDim64Wide{.dim = 64, .tile_q = 128, .tile_kv = 128, .stages = 3, .q_stages = 2};
constexpr Tiles kDim64ScoresWide{
    .dim = 64, .tile_q = 128, .tile_kv = 64, .stages = 3, .q_stages = 2};
constexpr Tiles kDim128{
    .dim = 128, .tile_q = 128, .tile_kv = 128, .stages = 2, .q_stages = 2, .o_columns = 128};
constexpr Tiles kDim128Few{.dim = 128,
                           .tile_q = 64,
                           .tile_kv = 64,
                           .stages = 2,
                           .q_stages = 1,
                           .blocks = 2,
                           .o_columns = 128,
                           .producer_warp = true};
// Tiles of bias and mask use the shared memory of Q's second stage.
constexpr Tiles kDim128Scores{
    .dim = 128, .tile_q = 128, .tile_kv = 64, .stages = 3, .q_stages = 1, .o_columns = 128};
// A mask without bias: raw stages of 64 queries hold mask bytes until they are packed into bits.
constexpr Tiles kDim64Mask{
    .dim = 64, .tile_q = 192, .tile_kv = 128, .stages = 3, .q_stages = 2, .raw_stages = 5};
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
    .dim = 256, .tile_q = 128, .tile_kv = 64, .stages = 2, .q_stages = 1, .raw_stages = 3};
// O takes 128 registers per thread, and Q 64 KB of shared memory.
constexpr Tiles kDim256{.dim = 256, .tile_q = 128, .tile_kv = 64, .stages = 2, .q_stages = 1};

// Dims above 256: next to up to 256 columns of O, registers suffice for the scores of 96 keys.
constexpr std::int64_t kMaxNarrowDim = 256;
constexpr std::int64_t kMostColumns = 256;
constexpr std::int64_t kSharedPerBlock = 232448;
constexpr Tiles kWide{.tile_q = 128, .tile_kv = 96, .q_stages = 1};

Tiles wide_tiles_of(const Problem& p) {
  Tiles tiles = kWide;
  tiles.dim = rounded_dim(p);
  tiles.o_columns = wide_o_columns(p);
  tiles.stages = most_wide_stages(p, tiles, kSharedPerBlock);
  return tiles;
}

// f32: each element is three bf16 parts, or two. The ring of K and V uses the shared memory that Q
// leaves.
constexpr Tiles kSplitDim64{.dim = 64, .tile_q = 128, .tile_kv = 64, .stages = 7, .q_stages = 1};
constexpr Tiles kSplitDim128{.dim = 128, .tile_q = 128, .tile_kv = 64, .stages = 5, .q_stages = 1};
constexpr int kTwoPartStages = 8;

// f8: tiles take half the bytes, V needs one more buffer, and P takes half the registers.
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
constexpr Tiles kF8Dim128Scores{.dim = 128,
                                .tile_q = 128,
                                .tile_kv = 64,
                                .stages = 2,
                                .q_stages = 1,
                                .o_columns = 128,
                                .raw_stages = 2};
constexpr Tiles kF8Dim256{
    .dim = 256, .tile_q = 128, .tile_kv = 64, .stages = 3, .q_stages = 1, .raw_stages = 2};

bool has_many_heads(const Problem& p) {
  return p.heads_q * p.batch >= kManyHeads;
}

bool is_plain_causal(const Problem& p) {
  return p.causal && is_plain(p);
}

// Whether each query sees few keys. kv_begin and kv_end do not tell the number. They are used for
// documents, and most documents are short.
bool has_short_rows(const Problem& p) {
  if (has_row_ranges(p)) return true;
  // Packed lengths with dropout would spill 550 bytes.
  if (p.len_kv <= kFewKeys && has_many_heads(p) && lengths_of(p) != kPacked) return true;
  if (p.causal && p.len_kv < kShortCausalDim64) return true;
  if (!p.window_left || !(p.causal || p.window_right)) return false;
  const auto clamped = [](std::int64_t n) { return std::clamp(n, -kShortWindow, kShortWindow); };
  const std::int64_t right = p.causal ? 0 : clamped(*p.window_right);
  return clamped(*p.window_left) + right < kShortWindow;
}

Tiles f8_tiles_of(const Problem& p) {
  const std::int64_t dim = std::max(p.dim_qk, p.dim_vo);
  const bool scores = p.bias.given || p.mask.given;
  if (dim > 128) return kF8Dim256;
  if (dim > 64) return scores ? kF8Dim128Scores : kF8Dim128;
  if (scores) return kF8Dim64Scores;
  const bool wide = has_row_ranges(p) || accumulate_tiles(p) > 0 ||
                    (lengths_of(p) == kPacked && (p.softcap || p.alibi || has_left_bound(p)));
  return wide ? kF8Dim64Wide : kF8Dim64;
}

Tiles mask_tiles_of(const Problem& p) {
  const std::int64_t dim = std::max(p.dim_qk, p.dim_vo);
  if (dim > 128) return kDim256Mask;
  if (dim > 64) return kDim128Mask;
  const bool wide = has_row_ranges(p) || lengths_of(p) == kPacked;
  return wide ? kDim64MaskWide : kDim64Mask;
}

Tiles split_tiles_of(const Problem& p) {
  Tiles tiles = rounded_dim(p) == 64 ? kSplitDim64 : kSplitDim128;
  if (bf16_parts(p) == 2) tiles.stages = kTwoPartStages;
  return tiles;
}

Tiles tiles_of(const Problem& p) {
  if (is_wide(p)) return wide_tiles_of(p);
  if (core::is_f8(p.dtype)) return f8_tiles_of(p);
  if (is_split(p)) return split_tiles_of(p);
  if (has_mask_bits(p)) return mask_tiles_of(p);
  const std::int64_t dim = std::max(p.dim_qk, p.dim_vo);
  const bool scores = p.bias.given || p.mask.given;
  if (dim > 128) return kDim256;
  if (dim > 64) return scores ? kDim128Scores : has_few_keys(p) ? kDim128Few : kDim128;
  if (scores) return has_row_ranges(p) ? kDim64ScoresWide : kDim64Scores;
  if (has_few_keys(p)) return kDim64Few;
  if (has_short_rows(p)) return kDim64Short;
  if (lengths_of(p) == kPacked && (p.softcap || p.dropout || p.alibi || has_left_bound(p))) {
    return kDim64Wide;
  }
  return kDim64;
}

// Above dim 64, tiles of equal work need no tile counter, which otherwise balances the load. At dim
// 64 they use it too: static order was not measured there in 16-bit types. In f32 it is 3 to 9 %
// faster (docs/kernels/sm90_forward_f32.md).
Schedule schedule_of(const Problem& p, const Tiles& tiles) {
  const bool equal_rows = !has_left_bound(p) && !has_right_bound(p) && !has_row_ranges(p) &&
                          lengths_of(p) == kNoLengths;
  if (equal_rows && tiles.dim > 64) return kStatic;
  const bool is_16_bit = size_of(p.dtype) == 2;
  const std::int64_t most_keys = is_16_bit ? kMostPairedKeys : kMostPairedKeysOtherTypes;
  const bool pairs = tiles.dim == 128 || (tiles.dim == 256 && is_16_bit);
  const bool paired = tiles.heads == 1 && is_plain_causal(p) && p.len_q == p.len_kv && pairs &&
                      !is_wide(p) && p.len_kv <= most_keys;
  return paired ? kPaired : kDynamic;
}

// The rows of a head in all of its tiles, empty ones included.
std::int64_t rows_of_head(const Problem& p, int tile_q, int heads) {
  const std::int64_t rows = tile_q / heads;
  return core::divide_up(p.len_q, rows) * rows;
}

// Grouped-query attention: the number of query heads that share a tile of queries, so that fewer of
// its rows are empty. Measured: 1.4 to 7 times as fast with up to 64 queries.
int heads_of(const Problem& p, int tile_q) {
  const std::int64_t group = p.heads_q / p.heads_kv;
  int best = 1;
  for (int rows = kGroupRows; rows >= kFewestHeadRows; rows /= 2) {
    const int heads = tile_q / rows;
    if (group % heads != 0) continue;
    if (rows_of_head(p, tile_q, heads) * 10 <= rows_of_head(p, tile_q, best) * 9) best = heads;
  }
  return best;
}

// `tiles` with the number of heads that share one, or other tiles that heads can share.
Tiles with_heads(const Problem& p, Tiles tiles, const DeviceFacts& facts) {
  const bool scores = p.bias.given || p.mask.given;
  if (scores || has_row_ranges(p) || is_wide(p) || is_split(p)) return tiles;
  // If every tile has an SM of its own, empty rows cost nothing.
  const std::int64_t resident = std::int64_t{facts.num_sms} * tiles.blocks;
  if (tile_counts(p, tiles.tile_q, 1).num_tiles <= resident) return tiles;
  tiles.heads = heads_of(p, tiles.tile_q);
  if (tiles.heads > 1 || tiles.tile_q != 192) return tiles;
  // Groups are seldom multiples of 3. Tiles of 128 queries take 1.3 times as long per row.
  Tiles wide = !core::is_f8(p.dtype) ? kDim64Wide : tiles.dim == 64 ? kF8Dim64Wide : kF8Dim128;
  wide.heads = heads_of(p, wide.tile_q);
  const std::int64_t rows = rows_of_head(p, wide.tile_q, wide.heads);
  const bool fewer = 3 * rows <= 2 * rows_of_head(p, tiles.tile_q, 1);
  return wide.heads > 1 && fewer ? wide : tiles;
}

}  // namespace

bool has_left_bound(const Problem& p) {
  return p.window_left.has_value();
}
bool has_right_bound(const Problem& p) {
  return p.causal || p.window_right.has_value();
}
Lengths lengths_of(const Problem& p) {
  if (p.layout_q == Layout::packed) return kPacked;
  return p.lengths_q || p.lengths_kv ? kPadded : kNoLengths;
}
bool is_plain(const Problem& p) {
  return !p.window_right && !has_left_bound(p) && !has_row_ranges(p) &&
         lengths_of(p) == kNoLengths && !p.softcap && !p.alibi && !p.bias.given && !p.mask.given &&
         !p.dropout;
}

bool has_few_keys(const Problem& p) {
  return p.len_q <= kGroupRows && p.len_kv <= kFewKeys && has_many_heads(p);
}

bool has_mask_bits(const Problem& p) {
  return p.mask.given && !p.bias.given && !core::is_f8(p.dtype);
}

int accumulate_tiles(const Problem& p) {
  if (!core::is_f8(p.dtype)) return 0;
  const bool narrow = std::max(p.dim_qk, p.dim_vo) <= 128;
  if (p.len_kv <= (narrow ? kF8LongRow : kF8LongRowDim256)) return 0;
  return narrow ? 1 : kF8AccumulateTilesDim256;
}

bool is_split(const Problem& p) {
  return p.dtype == DType::f32;
}
int bf16_parts(const Problem& p) {
  if (!is_split(p)) return 0;
  return p.precision == Precision::tf32 ? 2 : 3;
}

bool is_wide(const Problem& p) {
  return std::max(p.dim_qk, p.dim_vo) > kMaxNarrowDim;
}
int value_parts(const Problem& p) {
  return is_wide(p) ? static_cast<int>(core::divide_up(p.dim_vo, kMostColumns)) : 0;
}
int value_columns(const Problem& p) {
  if (!is_wide(p)) return rounded_dim(p);
  return static_cast<int>(core::divide_up(p.dim_vo, 64 * value_parts(p)) * 64);
}

int wide_o_columns(const Problem& p) {
  return value_columns(p) <= rounded_dim(p) ? value_columns(p) : 64;
}
int most_wide_stages(const Problem& p, const Tiles& tiles, std::int64_t shared_bytes) {
  Tiles tried = tiles;
  tried.stages = device::sm90::kMaxWideStages;
  while (tried.stages > 1 && shared_bytes_of(p, tried) > shared_bytes) --tried.stages;
  return tried.stages;
}

int rounded_dim(const Problem& p) {
  if (is_wide(p)) return static_cast<int>(core::divide_up(p.dim_qk, 64) * 64);
  const std::int64_t dim = std::max(p.dim_qk, p.dim_vo);
  return dim <= 64 ? 64 : dim <= 128 ? 128 : 256;
}

int shared_bytes_of(const Problem& p, const Tiles& tiles) {
  const auto bias_bytes = p.bias.given ? size_of(p.bias_type()) : 0;
  return device::sm90::ForwardSharedOf({.tile_q = tiles.tile_q,
                                        .tile_kv = tiles.tile_kv,
                                        .stages = tiles.stages,
                                        .q_stages = tiles.q_stages,
                                        .dim_qk = tiles.dim,
                                        .dim_vo = value_columns(p),
                                        .o_columns = tiles.o_columns,
                                        .score_bytes = static_cast<int>(bias_bytes) +
                                                       (p.mask.given && !has_mask_bits(p) ? 1 : 0),
                                        .element_bytes = static_cast<int>(size_of(p.dtype)),
                                        .raw_stages = tiles.raw_stages,
                                        .mask_bits = has_mask_bits(p),
                                        .wide = is_wide(p),
                                        .bf16_parts = bf16_parts(p)})
      .bytes;
}

Tiles choose_tiles(const Problem& p, const DeviceFacts& facts) {
  if (facts.tuned != nullptr && facts.tuned->size() > 0) {
    const auto text = facts.tuned->find(tuning_key(p));
    auto tuned = text ? parse_tiles(*text) : std::nullopt;
    if (tuned) {
      tuned->dim = rounded_dim(p);
      if (misfit(p, *tuned, facts).empty()) {
        Tiles tiles = with_heads(p, *tuned, facts);
        if (tiles.heads > 1) tiles.schedule = schedule_of(p, tiles);
        return tiles;
      }
    }
  }
  Tiles tiles = with_heads(p, tiles_of(p), facts);
  tiles.schedule = schedule_of(p, tiles);
  return tiles;
}

}  // namespace attn::cuda::sm90
