// Constants of sm90/bias_gradient.cu, from its Config:
//   dtype; dim_qk, dim_vo (rounded up to 16; TMA fills columns up to 64 or 128 with zeros)
//   box_q       queries per box of the tensor maps of q and dout: 64 or 128
//   bias_type
//   partials    whether the sum has several splits: their sums go to a.partials
//   dbias_type  of dbias, or f32 with `partials`
//   mask        whether a mask hides keys; it broadcasts queries
// The Config also has constants that included headers read: softcap, alibi (0), shared_entries (of
// the mask).
#pragma once
#include "config.cuh"
#include "shared/element.cuh"
#include "shared/operand.cuh"
#include "sm90/backward_params.cuh"
#include "sm90/bias_gradient_shared.cuh"

namespace sm90::bias_gradient {

using attn::device::Arguments;
using attn::device::kOperandBytes;
using attn::device::sm90::BackwardParams;

inline constexpr int kDtype = config::dtype;
inline constexpr int kTile = attn::device::sm90::kBiasGradientTile;
inline constexpr int kWarpgroups = attn::device::sm90::kBiasGradientWarpgroups;
inline constexpr int kThreads = attn::device::sm90::kBiasGradientThreads;
inline constexpr int kBoxRows = config::box_q;
inline constexpr int kBiasBytes = shared::ElementBytes(config::bias_type);
inline constexpr bool kPartials = config::partials != 0;
inline constexpr bool kHasMask = config::mask != 0;
inline constexpr int kDbiasBytes = shared::ElementBytes(config::dbias_type);
inline constexpr attn::device::sm90::BiasGradientShared kShared =
    attn::device::sm90::BiasGradientSharedOf(config::dim_qk, config::dim_vo, kBiasBytes);
inline constexpr int kStagesQk = kShared.stages_qk;
inline constexpr int kStagesVo = kShared.stages_vo;

// Chunks and bytes of a tile of Q or K, and of one of dO or V.
inline constexpr int kChunksQk = (config::dim_qk + 63) / 64;
inline constexpr int kChunksVo = (config::dim_vo + 63) / 64;
inline constexpr int kChunkBytes = kTile * 128;  // 64 columns
inline constexpr int kQkBytes = kChunksQk * kChunkBytes;
inline constexpr int kVoBytes = kChunksVo * kChunkBytes;

static_assert(kTile % kBoxRows == 0 && config::dim_qk % 16 == 0 && config::dim_vo % 16 == 0);
static_assert(!kPartials || config::dbias_type == config::f32);
static_assert(kTile * kTile * kDbiasBytes <= kShared.bias);

using Scores = float[kTile / 2];  // per thread, of 64 queries x 128 keys; see ptx/wgmma.cuh

// Registers after setmaxnreg; see forward_config.cuh. More than were allocated at launch would wait
// forever.
inline constexpr int kProducerRegisters = kHasMask ? 32 : 24;
inline constexpr int kConsumerRegisters = kHasMask ? 232 : 240;
static_assert(kProducerRegisters + kWarpgroups * kConsumerRegisters <=
              (1 + kWarpgroups) * (65536 / kThreads / 8 * 8));

}  // namespace sm90::bias_gradient
