// Constants of sm90/backward.cu and sm90/backward_head.cu. In addition to
// backward_common_config.cuh their Configs have
//   dim    of q, k, v and dout, rounded up to 64 or 128 (TMA fills columns past the end with zeros)
//   dbias  kDbiasStored, kDbiasSummed, or 0: not computed by this kernel
//   persistent  kTakesEarly or kTakesLate: a block computes several tiles of keys in sequence
//               (backward_items.cuh); requires no `lengths`, no row_ranges and no dbias; else 0
#pragma once
#include "sm90/backward_common_config.cuh"

namespace sm90 {

static_assert(kTileKv == attn::device::sm90::kBackwardTileKv);
inline constexpr int kStages = attn::device::sm90::kBackwardStages;
inline constexpr int kWarpgroups = attn::device::sm90::kBackwardWarpgroups;  // consumers
inline constexpr int kThreads = 128 * (1 + kWarpgroups);
inline constexpr bool kPersistent = config::persistent != 0;
inline constexpr bool kStoresDbias = config::dbias == attn::device::sm90::kDbiasStored;
inline constexpr bool kSumsDbias = config::dbias == attn::device::sm90::kDbiasSummed;
inline constexpr attn::device::sm90::BackwardShared kShared =
    kOwnsHead
        ? attn::device::sm90::BackwardHeadShared()
        : attn::device::sm90::BackwardSharedOf(kTileQ, kDim, kRowRanges, kTilesOfScores.bytes);
static_assert(!kPersistent || (!kLengths && !kRowRanges && config::dbias == 0));
inline constexpr int kKvBytes = kTileKv * kDim * kOperandBytes;  // of a tile of K or V
inline constexpr int kQBytes = kTileQ * kDim * kOperandBytes;    // of a tile of Q or dO
inline constexpr int kDsBytes = kTileQ * kTileKv * kOperandBytes;

// dQ of a step: each warpgroup computes 64 rows and 64 columns, each of its warps 16 rows. A tile
// of 128 queries x 64 dims is split by rows, one of 64 x 128 by columns.
inline constexpr int kDqRows = kTileQ == 128 ? 64 : 0;     // distance between the warpgroups' parts
inline constexpr int kDqColumns = kTileQ == 128 ? 0 : 64;  // likewise
inline constexpr int kDqPieceBytes = 16 * 64 * 4;          // of a warp
static_assert(kOwnsHead || (kTileQ == 128 && kDim == 64) || (kTileQ == 64 && kDim == 128));
static_assert(!kOwnsHead || (!kLengths && !kRowRanges && !kScoreTiles && config::dbias == 0));

using Scores = float[kTileQ / 2];  // per thread, of 64 keys x tile_q; see ptx/wgmma.cuh

// Registers after setmaxnreg; see forward_config.cuh.
inline constexpr int kProducerRegisters = 40;
inline constexpr int kConsumerRegisters = 232;

}  // namespace sm90
