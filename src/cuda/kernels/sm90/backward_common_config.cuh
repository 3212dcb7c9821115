// Constants that sm90/backward.cu, backward_head.cu and backward_wide.cu share, from their Configs:
//   dtype; dim; tile_q; tile_kv; left_bound (rows have a first visible key);
//   lengths     sequences have their own lengths: padded lengths or packed tensors
//   row_ranges  kv_begin or kv_end are given
//   softcap, alibi, dropout, bias_type, mask, shared_entries
//   bias_row, mask_row  the bias or mask broadcasts queries
//   store_elements (dK and dV accumulate, have another type, or replace non-finite results)
//   writes_sole_dq  consumers write the final dq of tiles of queries that see one tile of keys
//                   alone; requires row_ranges, and neither lengths nor store_elements
#pragma once
#include "config.cuh"
#include "shared/operand.cuh"
#include "sm90/backward_params.cuh"
#include "sm90/backward_shared.cuh"

namespace sm90 {

using attn::device::kOperandBytes;
using attn::device::sm90::BackwardParams;

inline constexpr int kDtype = config::dtype;
inline constexpr int kDim = config::dim;
inline constexpr int kTileQ = config::tile_q;
inline constexpr int kTileKv = config::tile_kv;
inline constexpr int kBiasBytes = config::bias_type == config::none  ? 0
                                  : config::bias_type == config::f32 ? 4
                                                                     : 2;
inline constexpr int kMaskBytes = config::mask != 0 ? 1 : 0;
inline constexpr bool kBiasRow = config::bias_row != 0;
inline constexpr bool kMaskRow = config::mask_row != 0;
inline constexpr attn::device::sm90::ScoreTiles kTilesOfScores = attn::device::sm90::ScoreTilesOf(
    kTileQ, kTileKv, {kBiasBytes, kBiasRow}, {kMaskBytes, kMaskRow});
inline constexpr bool kScoreTiles = kBiasBytes + kMaskBytes > 0;
inline constexpr bool kLengths = config::lengths != 0;
inline constexpr bool kRowRanges = config::row_ranges != 0;
inline constexpr bool kWritesSoleDq = config::writes_sole_dq != 0;
static_assert(!kWritesSoleDq || (kRowRanges && config::store_elements == 0));
// A block computes all gradients of a head (sm90/backward_head.cu). No other kernel has these
// tiles.
inline constexpr bool kOwnsHead =
    kTileQ == attn::device::sm90::kHeadTileQ && kDim == attn::device::sm90::kHeadDim;
// If a head has few key tiles, they begin at different query tiles (backward_keys.cuh). Not with
// options: they leave no register for the first tile, and the loops would spill at dim 64.
inline constexpr bool kBeginsApart = !kOwnsHead && !kRowRanges && !kLengths && !kScoreTiles &&
                                     config::left_bound == 0 && config::softcap == 0 &&
                                     config::alibi == 0 && config::dropout == 0;

// P is scaled by 2^kPShift. Without it, the rounded P, an operand of dV, would be subnormal in f16
// below 6e-5.
inline constexpr int kPShift = kDtype == config::f16 ? 8 : 0;
inline constexpr float kPScale = 1 << kPShift;

}  // namespace sm90
