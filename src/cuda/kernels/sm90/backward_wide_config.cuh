// Constants of sm90/backward_wide.cu. In addition to backward_common_config.cuh its Config has
//   dim, dim_vo    of q and k, rounded up to 64, and of v and dout, at most dim (TMA fills columns
//                  past the end with zeros)
//   dout_stages    stages of dO
//   split          dK and dV are issued in several groups, one after each part of dQ
//   deterministic  blocks add to dq_accum in a fixed order
#pragma once
#include "sm90/backward_common_config.cuh"
#include "sm90/backward_wide_shared.cuh"

namespace sm90 {

inline constexpr int kDimVo = config::dim_vo;
static_assert(kDimVo <= kDim);
static_assert(kTileQ == attn::device::sm90::kWideTileQ && kTileKv % 16 == 0);
inline constexpr int kQStages = attn::device::sm90::kWideQStages;
inline constexpr int kDoutStages = config::dout_stages;
inline constexpr int kDsStages = attn::device::sm90::kWideDsStages;
inline constexpr bool kSplit = config::split != 0;
inline constexpr bool kDeterministic = config::deterministic != 0;
inline constexpr int kThreads = 128 * (1 + attn::device::sm90::kWideWarpgroups);
inline constexpr attn::device::sm90::BackwardWideShared kShared =
    attn::device::sm90::BackwardWideSharedOf({kDim, kDimVo, kTileKv, kDoutStages},
                                             kTilesOfScores.bytes);
inline constexpr int kQBytes = kTileQ * kDim * kOperandBytes;  // of a tile
inline constexpr int kDoutBytes = kTileQ * kDimVo * kOperandBytes;
inline constexpr int kDsBytes = kTileKv * kTileQ * kOperandBytes;

// Registers after setmaxnreg; see forward_config.cuh.
inline constexpr int kProducerRegisters = 24;
inline constexpr int kConsumerRegisters = 240;

}  // namespace sm90
