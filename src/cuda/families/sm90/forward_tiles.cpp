// Tiles of sm90/forward.cu; see forward_tiles.hpp.
#include "cuda/families/sm90/forward_tiles.hpp"

#include <algorithm>
#include <optional>

#include "core/divide_up.hpp"
#include "core/signature.hpp"
#include "cuda/families/sm90/backward_plan.hpp"
#include "cuda/families/sm90/forward_tuning.hpp"
#include "cuda/families/tuned.hpp"
#include "cuda/kernels/sm90/forward_shared.cuh"

namespace attn::cuda::sm90 {
namespace {

// Dim 64: rows that see fewer keys have too little work for large tiles. Measured: windows of 256
// keys are faster with small tiles, of 512 level.
constexpr std::int64_t kShortCausalDim64 = 2048;
constexpr std::int64_t kShortWindow = 384;
// Dims 128 and 256, causal: up to this number of keys, pairs of a long and a short tile are faster
// than the tile counter, which needs a launch of its own: by 1 to 2 % (dim 128) and 2 to 8 % (dim
// 256). With 16384 keys the counter is 4 % faster.
constexpr std::int64_t kMostPairedKeys = 4096;
constexpr std::int64_t kMostPairedKeysOtherTypes = 1023;  // f8 and f32
// f8: tensor cores keep about 14 bits of a sum and truncate it after every 32 keys. With more keys
// than this, P V is added to f32 sums after every kF8AccumulateTiles tiles
// (docs/kernels/sm90_forward.md, "f8").
constexpr std::int64_t kF8LongRow = 16384;
constexpr int kF8AccumulateTiles = 8;

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
constexpr Tiles kDim64Scores{.dim = 64, .tile_q = 192, .tile_kv = 64, .stages = 3, .q_stages = 2};
// With 192 queries, packed lengths with an option spill 500 to 1100 bytes; kv_begin or kv_end with
// a bias or a mask 560 to 840.
constexpr Tiles kDim64Wide{.dim = 64, .tile_q = 128, .tile_kv = 128, .stages = 3, .q_stages = 2};
constexpr Tiles kDim64ScoresWide{
    .dim = 64, .tile_q = 128, .tile_kv = 64, .stages = 3, .q_stages = 2};
constexpr Tiles kDim128{
    .dim = 128, .tile_q = 128, .tile_kv = 128, .stages = 2, .q_stages = 2, .o_columns = 128};
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

// f32: each element is three bf16 parts. The ring of K and V uses the shared memory that Q leaves.
constexpr Tiles kSplitDim64{.dim = 64, .tile_q = 128, .tile_kv = 64, .stages = 7, .q_stages = 1};
constexpr Tiles kSplitDim128{.dim = 128, .tile_q = 128, .tile_kv = 64, .stages = 5, .q_stages = 1};

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
// With at least this many keys, three warpgroups are faster than two.
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

bool is_plain_causal(const Problem& p) {
  return p.causal && is_plain(p);
}

// Whether each query sees few keys. kv_begin and kv_end do not tell the number. They are used for
// documents, and most documents are short.
bool has_short_rows(const Problem& p) {
  if (has_row_ranges(p) || (p.causal && p.len_kv < kShortCausalDim64)) return true;
  if (!p.window_left || !(p.causal || p.window_right)) return false;
  const auto clamped = [](std::int64_t n) { return std::clamp(n, -kShortWindow, kShortWindow); };
  const std::int64_t right = p.causal ? 0 : clamped(*p.window_right);
  return clamped(*p.window_left) + right < kShortWindow;
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

Tiles mask_tiles_of(const Problem& p) {
  const std::int64_t dim = std::max(p.dim_qk, p.dim_vo);
  if (dim > 128) return kDim256Mask;
  if (dim > 64) return kDim128Mask;
  const bool wide = has_row_ranges(p) || lengths_of(p) == kPacked;
  return wide ? kDim64MaskWide : kDim64Mask;
}

Tiles tiles_of(const Problem& p) {
  if (is_wide(p)) return wide_tiles_of(p);
  if (core::is_f8(p.dtype)) return f8_tiles_of(p);
  if (is_split(p)) return rounded_dim(p) == 64 ? kSplitDim64 : kSplitDim128;
  if (has_mask_bits(p)) return mask_tiles_of(p);
  const std::int64_t dim = std::max(p.dim_qk, p.dim_vo);
  const bool scores = p.bias.given || p.mask.given;
  if (dim > 128) return kDim256;
  if (dim > 64) return scores ? kDim128Scores : kDim128;
  if (scores) return has_row_ranges(p) ? kDim64ScoresWide : kDim64Scores;
  if (has_short_rows(p)) return kDim64Short;
  if (lengths_of(p) == kPacked && (p.softcap || p.dropout || p.alibi || has_left_bound(p))) {
    return kDim64Wide;
  }
  return kDim64;
}

// If all tiles have equal work, no tile counter is needed. Otherwise the counter balances the load.
Schedule schedule_of(const Problem& p, const Tiles& tiles) {
  const bool equal_rows = !has_left_bound(p) && !has_right_bound(p) && !has_row_ranges(p) &&
                          lengths_of(p) == kNoLengths;
  if (equal_rows && tiles.dim > 64) return kStatic;
  const bool is_16_bit = size_of(p.dtype) == 2;
  const std::int64_t most_keys = is_16_bit ? kMostPairedKeys : kMostPairedKeysOtherTypes;
  const bool pairs = tiles.dim == 128 || (tiles.dim == 256 && is_16_bit);
  const bool paired =
      is_plain_causal(p) && p.len_q == p.len_kv && pairs && !is_wide(p) && p.len_kv <= most_keys;
  return paired ? kPaired : kDynamic;
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

bool has_mask_bits(const Problem& p) {
  return p.mask.given && !p.bias.given && !core::is_f8(p.dtype);
}

int accumulate_tiles(const Problem& p) {
  const bool long_rows = core::is_f8(p.dtype) && p.len_kv > kF8LongRow;
  return long_rows && std::max(p.dim_qk, p.dim_vo) <= 128 ? kF8AccumulateTiles : 0;
}

bool is_split(const Problem& p) {
  return p.dtype == DType::f32;
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
                                        .split = is_split(p)})
      .bytes;
}

Tiles choose_tiles(const Problem& p, const DeviceFacts& facts) {
  if (facts.tuned != nullptr && facts.tuned->size() > 0) {
    const auto text = facts.tuned->find(tuning_key(p));
    auto tuned = text ? parse_tiles(*text) : std::nullopt;
    if (tuned) {
      tuned->dim = rounded_dim(p);
      if (misfit(p, *tuned, facts).empty()) return *tuned;
    }
  }
  Tiles tiles = tiles_of(p);
  tiles.schedule = schedule_of(p, tiles);
  return tiles;
}

}  // namespace attn::cuda::sm90
