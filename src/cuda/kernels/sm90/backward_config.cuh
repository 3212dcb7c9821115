// Constants of sm90/backward.cu, from its Config:
//   dtype; dim (of q, k, v and dout, rounded up to 64; TMA fills columns past the tensor's with
//   zeros); tile_q; tile_kv (kBackwardTileKv); left_bound (rows begin at keys of their own);
//   lengths     sequences have lengths of their own: padded lengths or packed tensors
//   row_ranges  kv_begin or kv_end are given
//   softcap, alibi, dropout, bias_type, mask
//   dbias       kDbiasStored, kDbiasSummed, or 0: not by this kernel
//   store_elements (dK and dV accumulate, are of another type or replace non-finite results)
#pragma once
#include "config.cuh"
#include "sm90/backward_params.cuh"
#include "sm90/backward_shared.cuh"

namespace sm90 {

using attn::device::kOperandBytes;
using attn::device::sm90::BackwardParams;

inline constexpr int kDtype = config::dtype;
inline constexpr int kDim = config::dim;
inline constexpr int kTileQ = config::tile_q;
inline constexpr int kTileKv = config::tile_kv;
static_assert(kTileKv == attn::device::sm90::kBackwardTileKv);
inline constexpr int kStages = attn::device::sm90::kBackwardStages;
inline constexpr int kWarpgroups = attn::device::sm90::kBackwardWarpgroups;  // consumers
inline constexpr int kThreads = 128 * (1 + kWarpgroups);
inline constexpr int kBiasBytes = config::bias_type == config::none  ? 0
                                  : config::bias_type == config::f32 ? 4
                                                                     : 2;
inline constexpr int kMaskBytes = config::mask != 0 ? 1 : 0;
inline constexpr int kBiasTileBytes = kTileQ * kTileKv * kBiasBytes;
inline constexpr int kMaskTileBytes = kTileQ * kTileKv * kMaskBytes;
inline constexpr bool kScoreTiles = kBiasBytes + kMaskBytes > 0;
inline constexpr bool kStoresDbias = config::dbias == attn::device::sm90::kDbiasStored;
inline constexpr bool kSumsDbias = config::dbias == attn::device::sm90::kDbiasSummed;
inline constexpr bool kLengths = config::lengths != 0;
inline constexpr bool kRowRanges = config::row_ranges != 0;
inline constexpr attn::device::sm90::BackwardShared kShared =
    attn::device::sm90::BackwardSharedOf(kTileQ, kDim, kRowRanges, kBiasBytes + kMaskBytes);
inline constexpr int kKvBytes = kTileKv * kDim * kOperandBytes;  // of a tile of K or V
inline constexpr int kQBytes = kTileQ * kDim * kOperandBytes;    // of a tile of Q or dO
inline constexpr int kDsBytes = kTileQ * kTileKv * kOperandBytes;

// dQ of a step: a warpgroup computes 64 rows and 64 columns, a warp of it 16 rows. Which, depends
// on the tile: 128 x 64 is split by rows, 64 x 128 by columns.
inline constexpr int kDqRows = kTileQ == 128 ? 64 : 0;     // between the warpgroups' parts
inline constexpr int kDqColumns = kTileQ == 128 ? 0 : 64;  // likewise
inline constexpr int kDqPieceBytes = 16 * 64 * 4;          // of a warp
static_assert((kTileQ == 128 && kDim == 64) || (kTileQ == 64 && kDim == 128));

// P is 2^kPShift too large: the rounded P, an operand of dV, would be subnormal in f16 below 6e-5.
inline constexpr int kPShift = kDtype == config::f16 ? 8 : 0;
inline constexpr float kPScale = 1 << kPShift;

using Scores = float[kTileQ / 2];  // of a thread: 64 keys x tile_q; see ptx/wgmma.cuh

// Registers after setmaxnreg; see forward_config.cuh.
inline constexpr int kProducerRegisters = 40;
inline constexpr int kConsumerRegisters = 232;

}  // namespace sm90
