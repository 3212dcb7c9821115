// Constants of sm90/backward_wide.cu, from its Config:
//   dtype; dim (of q and k, rounded up to 64), dim_vo (of v and dout, at most dim; TMA fills
//   columns past the tensor's with zeros); tile_kv; dout_stages; left_bound (rows begin at keys of
//   their own); split (dK and dV are issued in as many groups as the warpgroup has parts of dQ);
//   deterministic (blocks add to dq_accum in a fixed order);
//   store_elements (dK and dV accumulate, are of another type or replace non-finite results)
#pragma once
#include "config.cuh"
#include "sm90/backward_params.cuh"
#include "sm90/backward_wide_shared.cuh"

namespace sm90 {

using attn::device::kOperandBytes;
using attn::device::sm90::BackwardParams;

inline constexpr int kDtype = config::dtype;
inline constexpr int kDim = config::dim;
inline constexpr int kDimVo = config::dim_vo;
static_assert(kDimVo <= kDim);
inline constexpr int kTileQ = attn::device::sm90::kWideTileQ;
inline constexpr int kTileKv = config::tile_kv;
static_assert(kTileKv % 16 == 0);
inline constexpr int kQStages = attn::device::sm90::kWideQStages;
inline constexpr int kDoutStages = config::dout_stages;
inline constexpr int kDsStages = attn::device::sm90::kWideDsStages;
inline constexpr bool kSplit = config::split != 0;
inline constexpr bool kDeterministic = config::deterministic != 0;
inline constexpr int kThreads = 128 * (1 + attn::device::sm90::kWideWarpgroups);
inline constexpr attn::device::sm90::BackwardWideShared kShared =
    attn::device::sm90::BackwardWideSharedOf({kDim, kDimVo, kTileKv, kDoutStages});
inline constexpr int kQBytes = kTileQ * kDim * kOperandBytes;  // of a tile
inline constexpr int kDoutBytes = kTileQ * kDimVo * kOperandBytes;
inline constexpr int kDsBytes = kTileKv * kTileQ * kOperandBytes;

// P is 2^kPShift too large: the rounded P, an operand of dV, would be subnormal in f16 below 6e-5.
inline constexpr int kPShift = kDtype == config::f16 ? 8 : 0;
inline constexpr float kPScale = 1 << kPShift;

// Registers after setmaxnreg; see forward_config.cuh.
inline constexpr int kProducerRegisters = 24;
inline constexpr int kConsumerRegisters = 240;

}  // namespace sm90
