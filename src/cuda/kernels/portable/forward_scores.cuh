// Of portable/forward.cu: how a tile is shared out among warps, and how a warp makes P of its rows.
#pragma once
#include "config.cuh"
#include "portable/forward_shared.cuh"
#include "ptx/memory.cuh"
#include "shared/dropout.cuh"
#include "shared/entry.cuh"
#include "shared/pair_tile.cuh"
#include "shared/product.cuh"
#include "shared/score.cuh"
#include "shared/sizes.cuh"
#include "shared/tile.cuh"

namespace forward {

using namespace shared;

constexpr int kRows = kTileQ / kWarps;  // of a warp
constexpr int kBlocksM = kRows / 16;    // fragments of 16 queries
constexpr int kBlocksN = kTileKv / 8;   // accumulators of 8 keys
constexpr int kBlocksK = config::dim_qk / 16;
constexpr int kBlocksD = config::dim_vo / 8;
constexpr bool kOneStage = kStages == 1;  // K comes while P V is computed, V while S is
// A warp leaves out tiles of which its rows see nothing. With two stages that costs more than it
// saves, since what is fetched and what is computed are no longer mixed; with dropout it spills.
constexpr bool kLeavesOut = kOneStage && config::dropout == 0 && kTileQ > kTileKv;
constexpr bool kHasBias = config::bias_type != config::none;
// Whether tiles of which every row sees all are taken as TakeQuickly() does, which is worth it
// where scores or P take more than an exponential. Elsewhere o would be further off than it is: the
// largest P of a row is then not 1, which is exact, but anything. Not with ALiBi, whose maxima rise
// with every tile; dims above 128, 16 rows a warp, lose.
constexpr bool kQuick =
    (config::dropout != 0 || config::softcap != 0 || kHasBias || config::mask != 0) &&
    config::alibi == 0 && config::dim_qk <= 128 && config::dim_vo <= 128;
// Whether the ranges of the warp's own rows say which tiles they cut, rather than the block's.
constexpr bool kOwnCuts = kOneStage || config::dropout == 0;
constexpr int kBiasBytes = kHasBias ? ElementBytes(config::bias_type) : 0;
constexpr attn::device::ForwardShared kShared = attn::device::ForwardSharedOf(
    kTileQ, kTileKv, kStages, config::dim_qk, config::dim_vo, kBiasBytes, config::mask != 0);
static_assert(kTileQ % (16 * kWarps) == 0 && kTileKv % 16 == 0 && kRows <= 32);

using QLayout = TileLayout<config::dim_qk>;
using VLayout = TileLayout<config::dim_vo>;
using BiasTile = PairTile<kRows, kHasBias ? kTileKv : 64, kHasBias ? kBiasBytes : 2>;
using MaskTile = PairTile<kRows, config::mask != 0 ? kTileKv : 64, 1>;

using Scores = float[kBlocksM][kBlocksN][4];
using Output = float[kBlocksM][kBlocksD][4];
using QFragments = unsigned[kBlocksM][kBlocksK][4];

// Of a warp's 32 rows with dropout, bits 0 and 4 of the number change places: the four rows of a
// lane are those that one call of Philox serves. Where Q is read anew for each tile that takes
// registers which are not there.
constexpr bool kExchanged = config::dropout != 0 && kRows == 32 && config::q_in_registers != 0;
// Accumulators that TakeQuickly() makes at once: of 16 keys where a call serves these, so that the
// integer unit, exponentials and products take turns; all where there are no registers for it.
constexpr int kQuickN = kExchanged ? 2 : kBlocksN;
__device__ __forceinline__ int Exchanged(int row) {
  return kExchanged ? (row & ~17) | (row & 1) << 4 | (row >> 4 & 1) : row;
}
// Row of the warp's queries that half r of fragment m is of, for this lane.
__device__ __forceinline__ int RowOf(int m, int r) {
  return Exchanged(16 * m + static_cast<int>(threadIdx.x) % 32 / 4 + 8 * r);
}
// First of this lane's two columns of accumulator n.
__device__ __forceinline__ int ColumnOf(int n) {
  return 8 * n + static_cast<int>(threadIdx.x) % 4 * 2;
}

// Fragment k of rows m of the warp's Q.
__device__ __forceinline__ void LoadQ(unsigned q_tile, int m, int k, unsigned (&fragment)[4]) {
  if constexpr (kExchanged) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    ptx::LoadMatrix(fragment,
                    q_tile + QLayout::At(Exchanged(16 * m + lane % 16), 2 * k + lane / 16));
  } else {
    const auto q_lane = FragmentLane<config::dim_qk>::RowsFirst();
    ptx::LoadMatrix(fragment, q_lane.At(q_tile, 16 * m, 2 * k));
  }
}

// s = Q K^T, of 8 kN keys from k_row on.
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
  MultiplyTransposed<kDtype, config::dim_qk>(load, k_tile, k_row, s);
}

// Dropout's bytes of 16 kN keys; of blocks of 16 x 16.
template <int kN>
using TileDraws = Draws[kBlocksM][kN];

// P of a tile, rounded: the A fragments of P V.
using PackedP = unsigned[kBlocksM][kTileKv / 16][4];

// Fragments of P from k0 on, with dropout what `draws` keep of it. What is kept grows at the end,
// all at once.
template <int kN>
__device__ __forceinline__ void Pack(const float (&s)[kBlocksM][kN][4], const Dropout& dropout,
                                     const TileDraws<kN / 2>& draws, int k0, PackedP& p) {
#pragma unroll
  for (int m = 0; m < kBlocksM; ++m)
#pragma unroll
    for (int k = 0; k < kN / 2; ++k)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float(&c)[4] = s[m][2 * k + e / 2];
        unsigned pair = ptx::Pack<kDtype>(c[e % 2 * 2], c[e % 2 * 2 + 1]);
        if constexpr (config::dropout != 0) {
          pair = DropPair<kDtype>(pair, Keeps<false>(dropout, draws[m][k], e / 2, e % 2));
        }
        p[m][k0 + k][e] = pair;
      }
}

// What a warp needs of the options, apart from the tiles of bias and mask.
struct Options {
  ScoreScale scale;
  Dropout dropout;
  PhiloxRow dropout_row;
  unsigned bias_tile;
  unsigned mask_tile;
  float first;  // ALiBi: query 0 of the warp's + diag
};

// Softcap, ALiBi, bias: raw products with keys from j0 + 8 n0 on become scores in units of log2.
template <bool in_series, int kN>
__device__ __forceinline__ void ScoreTile(const Arguments& a, const Options& options, int j0,
                                          int n0, float (&s)[kBlocksM][kN][4]) {
#pragma unroll
  for (int m = 0; m < kBlocksM; ++m)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float from = options.first + static_cast<float>(RowOf(m, r) - j0 - ColumnOf(0));
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        float2 bias{};
        if constexpr (kHasBias) {
          bias =
              BiasTile::Floats<config::bias_type>(options.bias_tile, RowOf(m, r), ColumnOf(n0 + n));
        }
        float slope;
        float* pair = s[m][n] + 2 * r;
        const int at = 8 * (n0 + n);
        pair[0] = Score<in_series>(a, options.scale, pair[0], from - at, bias.x, 0.0f, slope);
        pair[1] = Score<in_series>(a, options.scale, pair[1], from - (at + 1), bias.y, 0.0f, slope);
      }
    }
}

// Of keys from j0 + 8 n0 on.
template <int kN>
__device__ __forceinline__ void HideByMask(unsigned mask_tile, int n0,
                                           float (&s)[kBlocksM][kN][4]) {
#pragma unroll
  for (int m = 0; m < kBlocksM; ++m)
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        const unsigned bytes = MaskTile::Bytes(mask_tile, RowOf(m, r), ColumnOf(n0 + n));
        if ((bytes & 0xff) == 0) s[m][n][2 * r] = -kInfinity;
        if ((bytes & 0xff00) == 0) s[m][n][2 * r + 1] = -kInfinity;
      }
}

// Hides what is outside the keys that each row sees.
__device__ __forceinline__ void HideByRange(const KeyRange* ranges, int j0, Scores& s) {
#pragma unroll
  for (int m = 0; m < kBlocksM; ++m)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const KeyRange keys = ranges[RowOf(m, r)];
      const unsigned width = static_cast<unsigned>(keys.end - keys.begin);
      const int from = j0 + ColumnOf(0) - keys.begin;
#pragma unroll
      for (int n = 0; n < kBlocksN; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          if (static_cast<unsigned>(from + 8 * n + e) >= width) s[m][n][2 * r + e] = -kInfinity;
        }
    }
}

// Dropout's bytes for keys from j on; `row`: of the lane, where rows are exchanged.
template <int kN>
__device__ __forceinline__ void DrawTile(const Dropout& dropout, const PhiloxRow& row, int i0,
                                         int j, TileDraws<kN>& draws) {
  if constexpr (kExchanged) {
#pragma unroll
    for (int k = 0; k < kN; ++k) {
      DrawRows(dropout, row, i0, j + 16 * k, RowOf(0, 0), draws[0][k], draws[1][k]);
    }
  } else {
    static_assert(kN % 2 == 0);
#pragma unroll
    for (int m = 0; m < kBlocksM; ++m)
#pragma unroll
      for (int k = 0; k < kN; k += 2) {
        Draw(dropout, i0 + 16 * m, j + 16 * k, draws[m][k], draws[m][k + 1]);
      }
  }
}

// By how much, in units of log2, scores may be above the maximum that a row's P is taken against,
// where that is asked for.
constexpr float kSlack = kQuick ? 8.0f : 0.0f;
// Of a lane's P of a tile, in TakeQuickly(). A sum above it has an element beyond kSlack, so that
// the maximum rises: no tile is taken twice because of the one before. Below it P is at most 2^13,
// whose products f16 and f32 hold as well as those of P up to 1.
constexpr float kMostInSum = 260.0f * (kTileKv / 4);

// What a row's P is taken against, its maximum so far or one up to kSlack less, and this lane's
// part of its sum, for a warp's rows. With kModified they are in units of log2, else the maximum is
// of raw products of which `unit` makes those.
struct Softmax {
  float max[kBlocksM][2];
  float sum[kBlocksM][2];
};
// A maximum in units of log2. Rounded: fused with a difference, one that stays would give 2 to the
// error of that rounding, tile after tile, in place of 1. With kModified `unit` is 1, but without
// the product ALiBi at dim 128 spills (312 TFLOP/s become 288).
__device__ __forceinline__ float TopOf(float max, float unit) {
  return kModified && kQuick ? max : __fmul_rn(max, unit);
}

// Tiles of which every row sees all, where all rows have seen a key before: P against what is
// known, some keys after the other. No maximum is asked for, nothing is brought down; sums of P say
// afterwards whether a maximum has risen too far. False where one has: then nothing but p is
// changed, and the tile is taken as others are.
__device__ __forceinline__ bool TakeQuickly(const Arguments& a, const Options& options,
                                            const QFragments& q, unsigned q_tile, unsigned k_tile,
                                            int i0, int j0, float unit, Softmax& row, PackedP& p) {
  float top[kBlocksM][2];
  float sum[kBlocksM][2]{};
#pragma unroll
  for (int m = 0; m < kBlocksM; ++m)
#pragma unroll
    for (int r = 0; r < 2; ++r) top[m][r] = TopOf(row.max[m][r], unit);
  bool within = true;
#pragma unroll
  for (int n0 = 0; n0 < kBlocksN; n0 += kQuickN) {
    TileDraws<kQuickN / 2> draws;
    if constexpr (config::dropout != 0) {
      DrawTile(options.dropout, options.dropout_row, i0, j0 + 8 * n0, draws);
    }
    float s[kBlocksM][kQuickN][4];
    MultiplyQK(q, q_tile, k_tile, 8 * n0, s);
    if constexpr (config::softcap != 0) within = within && IsInSeriesHere(a, s);
    if constexpr (kModified) ScoreTile<true>(a, options, j0, n0, s);
    if constexpr (config::mask != 0) HideByMask(options.mask_tile, n0, s);
#pragma unroll
    for (int n = 0; n < kQuickN; ++n)
#pragma unroll
      for (int m = 0; m < kBlocksM; ++m)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          float* pair = s[m][n] + 2 * r;
          pair[0] = ptx::Exp2(fmaf(pair[0], unit, -top[m][r]));
          pair[1] = ptx::Exp2(fmaf(pair[1], unit, -top[m][r]));
          sum[m][r] += pair[0] + pair[1];
        }
    Pack(s, options.dropout, draws, n0 / 2, p);
  }
#pragma unroll
  for (int m = 0; m < kBlocksM; ++m)
#pragma unroll
    for (int r = 0; r < 2; ++r) within = within && sum[m][r] < kMostInSum;
  if (!__all_sync(~0u, within)) return false;
#pragma unroll
  for (int m = 0; m < kBlocksM; ++m)
#pragma unroll
    for (int r = 0; r < 2; ++r) row.sum[m][r] += sum[m][r];
  return true;
}

// s becomes P against the new maxima, and o and the sums are brought down to them. True where all
// rows have seen a key.
__device__ __forceinline__ bool Exponentiate(float unit, Scores& s, Softmax& row, Output& o) {
  bool seen = true;
#pragma unroll
  for (int m = 0; m < kBlocksM; ++m)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float old = row.max[m][r];
      float max = old;
#pragma unroll
      for (int n = 0; n < kBlocksN; ++n)
        max = fmaxf(max, fmaxf(s[m][n][2 * r], s[m][n][2 * r + 1]));
      max = fmaxf(max, __shfl_xor_sync(~0u, max, 1));
      max = fmaxf(max, __shfl_xor_sync(~0u, max, 2));
      if (kQuick && TopOf(max, unit) - TopOf(old, unit) <= kSlack) max = old;
      row.max[m][r] = max;
      seen = seen && max > -kInfinity;
      // A row that has seen nothing keeps exp2(-inf - 0) = 0.
      const float top = max == -kInfinity ? 0.0f : TopOf(max, unit);
      const float down = ptx::Exp2(TopOf(old, unit) - top);
      float sum = row.sum[m][r] * down;
#pragma unroll
      for (int n = 0; n < kBlocksN; ++n) {
        float* pair = s[m][n] + 2 * r;
        pair[0] = ptx::Exp2(fmaf(pair[0], unit, -top));
        pair[1] = ptx::Exp2(fmaf(pair[1], unit, -top));
        sum += pair[0] + pair[1];
      }
      row.sum[m][r] = sum;
#pragma unroll
      for (int d = 0; d < kBlocksD; ++d) {
        o[m][d][2 * r] *= down;
        o[m][d][2 * r + 1] *= down;
      }
    }
  return kQuick && __all_sync(~0u, seen);
}

}  // namespace forward
