// Constants of sm90/backward_wide.cu. In addition to backward_common_config.cuh its Config has
//   dim, dim_vo    columns of q and k in a block, a multiple of 64, and of v and dout, at most dim
//                  (TMA fills columns past the end with zeros)
//   cluster        1, or above dim 256 2: block r of a cluster has columns dim r to dim (r + 1) - 1
//                  of q, k, dq and dk, and likewise dim_vo of v, dout and dv
//   dout_stages    stages of dO
//   split          dK and dV are issued in several groups, one after each part of dQ
//   deterministic  blocks add to dq_accum in a fixed order
#pragma once
#include "ptx/cluster_stores.cuh"
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
inline constexpr int kCluster = config::cluster;
static_assert(kCluster == 1 || kCluster == 2);
inline constexpr int kThreads = 128 * (1 + attn::device::sm90::kWideWarpgroups);
inline constexpr attn::device::sm90::BackwardWideShared kShared =
    attn::device::sm90::BackwardWideSharedOf({kDim, kDimVo, kTileKv, kDoutStages, kCluster},
                                             kTilesOfScores.bytes);
inline constexpr int kQBytes = kTileQ * kDim * kOperandBytes;  // of a tile
inline constexpr int kDoutBytes = kTileQ * kDimVo * kOperandBytes;
inline constexpr int kDsBytes = kTileKv * kTileQ * kOperandBytes;

// The block's index in its cluster.
__device__ __forceinline__ int Rank() {
  if constexpr (kCluster == 1) return 0;
  return static_cast<int>(ptx::ClusterRank());
}

// Registers after setmaxnreg; see forward_config.cuh.
inline constexpr int kProducerRegisters = 24;
inline constexpr int kConsumerRegisters = 240;

}  // namespace sm90
