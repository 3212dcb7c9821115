// sm80/forward.cu: how warps and lanes divide a tile, and the two matrix products.
//
// A warp owns kRows queries of the block, 16 or 32. S and P stay in registers: the accumulators of
// S, packed pairwise, are the A fragments of P V. product_f32.cuh describes f32.
#pragma once
#include "config.cuh"
#include "ptx/memory.cuh"
#include "shared/dropout.cuh"
#include "shared/score.cuh"
#include "shared/sequence.cuh"
#include "sm80/bias_mask_tile.cuh"
#include "sm80/forward_shared.cuh"
#include "sm80/product.cuh"
#include "sm80/product_f32.cuh"
#include "sm80/sizes.cuh"
#include "sm80/tile.cuh"

namespace sm80::forward {

constexpr int kRows = kTileQ / kWarps;  // queries per warp
constexpr int kBlocksM = kRows / 16;    // fragments of 16 queries
constexpr int kBlocksN = kTileKv / 8;   // accumulators of 8 keys
constexpr int kBlocksK = config::dim_qk * kElementBytes / 32;
constexpr int kBlocksD = config::dim_vo / 8;
constexpr bool kOneStage = kStages == 1;
constexpr bool kHasBias = config::bias_type != config::none;
constexpr bool kHasMask = config::mask != 0;
constexpr bool kHasDropout = config::dropout != 0;

// A warp skips tiles in which its rows see no key. Not with two stages, where skipping separates
// loads from products and costs more than it saves. Not with dropout, where it spills.
constexpr bool kSkipsHiddenTiles = kOneStage && !kHasDropout && kTileQ > kTileKv;

// Lazy rescaling: full tiles are exponentiated against the running max without updating it. Worth
// it only if a score modifier, a mask or dropout costs more than the exponential itself. Not used
// otherwise, because with a stale max the largest P of a row is no longer exactly 1, which raises
// the rounding error of o. Not used with ALiBi (the max rises with every tile), above dim 128 (16
// rows per warp: slower) or in f32 (products cost more than all of these).
constexpr bool kLazyRescale = !kF32 &&
                              (kHasDropout || config::softcap != 0 || kHasBias || kHasMask) &&
                              config::alibi == 0 && config::dim_qk <= 128 && config::dim_vo <= 128;

// If true, the warp's own rows decide whether a tile is partial; otherwise all rows of the block
// do.
constexpr bool kPartialByWarp = kOneStage || !kHasDropout;

constexpr int kBiasBytes = kHasBias ? ElementBytes(config::bias_type) : 0;
constexpr attn::device::ForwardShared kShared = attn::device::ForwardSharedOf(
    kTileQ, kTileKv, kStages, config::dim_qk, config::dim_vo, kBiasBytes, kHasMask, kElementBytes);
static_assert(kTileQ % (16 * kWarps) == 0 && kTileKv % 16 == 0 && kRows <= 32);

using QLayout = TileLayout<config::dim_qk>;
using VLayout = TileLayout<config::dim_vo>;
using BiasTile = BiasMaskTile<kRows, kHasBias ? kTileKv : 64, kHasBias ? kBiasBytes : 2>;
using MaskTile = BiasMaskTile<kRows, kHasMask ? kTileKv : 64, 1>;

using Scores = float[kBlocksM][kBlocksN][4];
using Output = float[kBlocksM][kBlocksD][4];
using QFragments = unsigned[kBlocksM][kBlocksK][4];
// P rounded, as A fragments of P V.
constexpr int kBlocksP = kF32 ? kBlocksN * kParts : kTileKv / 16;
using PackedP = unsigned[kBlocksM][kBlocksP][4];
static_assert(!kF32 || config::q_in_registers == 0);

// With dropout and 32 rows per warp, bits 0 and 4 of a row's index are swapped, so that one Philox
// call covers the four rows of a lane. Not if Q is reloaded for each tile: registers do not
// suffice.
constexpr bool kPermutesRows = kHasDropout && kRows == 32 && config::q_in_registers != 0;
__device__ __forceinline__ int PermuteRow(int row) {
  return kPermutesRows ? (row & ~17) | (row & 1) << 4 | (row >> 4 & 1) : row;
}
// The query, among the warp's, that this lane holds in half r of fragment m.
__device__ __forceinline__ int RowOf(int m, int r) {
  return PermuteRow(16 * m + static_cast<int>(threadIdx.x) % 32 / 4 + 8 * r);
}
// The first of this lane's two keys in accumulator n.
__device__ __forceinline__ int ColumnOf(int n) {
  return 8 * n + static_cast<int>(threadIdx.x) % 4 * 2;
}

// Loads fragment (m, k) of the warp's Q.
__device__ __forceinline__ void LoadQ(unsigned q_tile, int m, int k, unsigned (&fragment)[4]) {
  if constexpr (kPermutesRows) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    ptx::LoadMatrix(fragment,
                    q_tile + QLayout::At(PermuteRow(16 * m + lane % 16), 2 * k + lane / 16));
  } else {
    const auto q_lane = FragmentLane<config::dim_qk>::RowsFirst();
    ptx::LoadMatrix(fragment, q_lane.At(q_tile, 16 * m, 2 * k));
  }
}

// Called when the tile of Q has arrived: loads the warp's fragments if they are kept in registers.
__device__ __forceinline__ void LoadQFragments(const Arguments& a, unsigned q_tile, QFragments& q) {
  if (!kHasScoreMod && a.negative_scale != 0) {
    // The running max is taken over raw products, so a negative scale flips the sign of Q instead.
    for (int n = static_cast<int>(threadIdx.x) % 32; n < kRows * QLayout::kRowBytes / 4; n += 32) {
      const unsigned at = q_tile + static_cast<unsigned>(4 * n);
      ptx::StoreShared32(at, ptx::LoadShared32(at) ^ (kF32 ? 0x80000000u : 0x80008000u));
    }
    __syncwarp();
  }
  if constexpr (config::q_in_registers != 0) {
#pragma unroll
    for (int m = 0; m < kBlocksM; ++m)
#pragma unroll
      for (int k = 0; k < kBlocksK; ++k) LoadQ(q_tile, m, k, q[m][k]);
  }
}

// s = Q K^T for 8 kN keys from k_row of the tile.
template <int kN>
__device__ __forceinline__ void MultiplyQK(const QFragments& q, unsigned q_tile, unsigned k_tile,
                                           int k_row, float (&s)[kBlocksM][kN][4]) {
  const auto load = [&](int k, unsigned(&a)[kBlocksM][4]) {
#pragma unroll
    for (int m = 0; m < kBlocksM; ++m) {
      if constexpr (config::q_in_registers == 0) {
        LoadQ(q_tile, m, k, a[m]);
      } else {
#pragma unroll
        for (int e = 0; e < 4; ++e) a[m][e] = q[m][k][e];
      }
    }
  };
  if constexpr (kF32) {
    MultiplyTransposedF32<config::dim_qk, false>(load, q_tile, k_tile, k_row, s);
  } else {
    MultiplyTransposed<kDtype, config::dim_qk>(load, k_tile, k_row, s);
  }
}

// o += P V. A template, so that only the product for this Config's type is instantiated.
template <class P>
__device__ __forceinline__ void MultiplyPV(const P& p, unsigned v_tile, Output& o) {
  if constexpr (kF32) {
    MultiplyF32<config::dim_vo, kTileKv, false>(p, v_tile, o);
  } else {
    const auto v_lane = FragmentLane<config::dim_vo>::RowsFirst();
#pragma unroll
    for (int k = 0; k < kBlocksP; ++k) {
      unsigned a[kBlocksM][4];
#pragma unroll
      for (int m = 0; m < kBlocksM; ++m)
#pragma unroll
        for (int e = 0; e < 4; ++e) a[m][e] = p[m][k][e];
      Multiply<kDtype>(a, v_lane, v_tile, 16 * k, 0, o);
    }
  }
}

}  // namespace sm80::forward
