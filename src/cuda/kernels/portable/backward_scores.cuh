// Of portable/backward.cu: how a tile is shared out among warps, and what a warp makes of its part
// of S and dP.
//
// S and dP are computed transposed, keys being rows, because then P^T and dS^T, packed pairwise,
// are A fragments of dV += P^T dO and dK += dS^T Q as they stand.
#pragma once
#include "config.cuh"
#include "portable/backward_shared.cuh"
#include "ptx/memory.cuh"
#include "shared/dropout.cuh"
#include "shared/entry.cuh"
#include "shared/pair_tile.cuh"
#include "shared/product.cuh"
#include "shared/score.cuh"
#include "shared/sizes.cuh"
#include "shared/tile.cuh"

namespace backward {

using namespace shared;

constexpr int kDimQk = config::dim_qk;
constexpr int kDimVo = config::dim_vo;
constexpr bool kExchange = config::exchange != 0;
constexpr bool kHasBias = config::bias_type != config::none;
constexpr bool kHasMask = config::mask != 0;
constexpr int kBiasBytes = kHasBias ? ElementBytes(config::bias_type) : 2;
constexpr attn::device::BackwardShared kShared =
    attn::device::BackwardSharedOf(kTileQ, kTileKv, kStages, kDimQk, kDimVo, config::exchange,
                                   kWarps, kHasBias ? kBiasBytes : 0, kHasMask);

// Scores: a warp computes kScoreKeys x kScoreQueries of a tile, kChunk queries at a time.
constexpr int kChunk = config::chunk;
constexpr int kScoreKeys = kExchange ? 32 : kTileKv / kWarps;
constexpr int kScoreWarps = kTileKv / kScoreKeys;  // along the keys
constexpr int kScoreQueries = kTileQ / (kWarps / kScoreWarps);
constexpr int kBlocksS = kScoreKeys / 16;
// dK and dV: a warp has kOutKeys keys and a part of the dims; apart: half of the warps have dV, the
// others dK, of twice the keys, so that each fragment that is read feeds more products.
constexpr bool kApart = config::exchange >= 2;
constexpr int kOutKeys = kApart ? 64 : kExchange ? 32 : kScoreKeys;
constexpr int kOutWarps = kTileKv / kOutKeys;
constexpr int kOutParts = kWarps / kOutWarps / (kApart ? 2 : 1);
constexpr int kPartQk = kDimQk / kOutParts;
constexpr int kPartVo = kDimVo / kOutParts;
static_assert(!kApart || (kExchange && kDimQk == kDimVo));
constexpr int kBlocksM = kOutKeys / 16;
// dQ: a warp has a part of the queries and of the dims.
constexpr int kSumWarps = kDimQk % (8 * kWarps) == 0 && kTileQ >= 32 ? 2 : 4;  // along the queries
constexpr int kSumQueries = kTileQ / kSumWarps;
constexpr int kSumDims = kDimQk / (kWarps / kSumWarps);
static_assert(kScoreKeys % 16 == 0 && kScoreQueries % kChunk == 0 && kSumQueries % 16 == 0);
static_assert(kChunk == 16 || kChunk == 32);
static_assert(kTileKv * (kApart ? 2 : 1) * (kDimQk > kDimVo ? kDimQk : kDimVo) * 4 <=
              kShared.bytes);
static_assert(kTileQ <= kThreads);
static_assert(kPartQk % 16 == 0 && kPartVo % 16 == 0 && kSumDims % 16 == 0);

// Two warps of the same keys have neighbouring 16 queries; of both, one computes S and the other
// dP, for the same reason, and they exchange what is of the other's queries.
constexpr bool kScoresApart = config::exchange == 3;
static_assert(!kScoresApart || (kScoreQueries == 16 && kChunk == 16));

using QkLayout = TileLayout<kDimQk>;
using VoLayout = TileLayout<kDimVo>;
using PairLayout = TileLayout<kTileQ>;  // P and dS transposed: [keys][queries]
using BiasTile = PairTile<kScoreQueries, kScoreKeys, kBiasBytes>;
using MaskTile = PairTile<kScoreQueries, kScoreKeys, kHasMask ? 1 : 2>;  // bytes

// kChunk queries of a warp's keys, transposed: accumulators of 8 queries each.
constexpr int kBlocksN = kChunk / 8;
using Scores = float[kBlocksS][kBlocksN][4];
using Fragments = unsigned[kBlocksN / 2][kBlocksS][4];  // the same, packed: A of 16 x 16
template <int dims>
using Sums = float[kBlocksM][dims / 8][4];

__device__ __forceinline__ int Lane() {
  return static_cast<int>(threadIdx.x) % 32;
}
__device__ __forceinline__ int Warp() {
  return static_cast<int>(threadIdx.x) / 32;
}

// c = X Y^T over kDim: rows of X at `x_row` of its tile (from registers where they are kept),
// kChunk rows of Y.
template <int kDim, int kKept>
__device__ __forceinline__ void MultiplyChunk(const unsigned (&kept)[kKept][kBlocksS][4],
                                              unsigned x_tile, int x_row, unsigned y_tile,
                                              int y_row, Scores& c) {
  const auto x_lane = FragmentLane<kDim>::RowsFirst();
  const auto load = [&](int k, unsigned(&a)[kBlocksS][4]) {
#pragma unroll
    for (int m = 0; m < kBlocksS; ++m) {
      if constexpr (kKept > 1) {
#pragma unroll
        for (int e = 0; e < 4; ++e) a[m][e] = kept[k][m][e];
      } else {
        ptx::LoadMatrix(a[m], x_lane.At(x_tile, x_row + 16 * m, 2 * k));
      }
    }
  };
  MultiplyTransposed<kDtype, kDim>(load, y_tile, y_row, c);
}

// With kScoresApart: the warp's s and dp.
__device__ __forceinline__ void MultiplyApart(unsigned k_tile, unsigned v_tile, int key,
                                              unsigned q_tile, unsigned dout_tile, int query,
                                              unsigned pairs, Scores& s, Scores& dp) {
  static_assert(kDimQk == kDimVo || !kScoresApart);
  const bool has_dp = query / 16 % 2 != 0;
  const unsigned x_tile = has_dp ? v_tile : k_tile;
  const unsigned y_tile = has_dp ? dout_tile : q_tile;
  const unsigned y_own = y_tile + static_cast<unsigned>(query * QkLayout::kRowBytes);
  const unsigned y_other = y_tile + static_cast<unsigned>((query ^ 16) * QkLayout::kRowBytes);
  const auto x_lane = FragmentLane<kDimQk>::RowsFirst();
  const auto y_lane = FragmentLane<kDimQk>::ColumnsFirst();
  Scores own;
  Scores other;
#pragma unroll
  for (int k = 0; k < kDimQk / 16; ++k) {
    unsigned x[kBlocksS][4];
    unsigned y[2][4];
#pragma unroll
    for (int m = 0; m < kBlocksS; ++m) {
      ptx::LoadMatrix(x[m], x_lane.At(x_tile, key + 16 * m, 2 * k));
    }
    ptx::LoadMatrix(y[0], y_lane.At(y_own, 0, 2 * k));
    ptx::LoadMatrix(y[1], y_lane.At(y_other, 0, 2 * k));
#pragma unroll
    for (int m = 0; m < kBlocksS; ++m)
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        if (k == 0) {
          ptx::MmaFirst<kDtype>(own[m][n], x[m], y[0][2 * n], y[0][2 * n + 1]);
          ptx::MmaFirst<kDtype>(other[m][n], x[m], y[1][2 * n], y[1][2 * n + 1]);
        } else {
          ptx::Mma<kDtype>(own[m][n], x[m], y[0][2 * n], y[0][2 * n + 1]);
          ptx::Mma<kDtype>(other[m][n], x[m], y[1][2 * n], y[1][2 * n + 1]);
        }
      }
  }
  // The partner's queries are 16 away, and kScoreWarps warps.
  const int partner = Warp() ^ kScoreWarps;
  const auto place = [&](int warp, int i) {
    return pairs + static_cast<unsigned>(warp * kBlocksS * 1024 + i * 512 + Lane() * 16);
  };
#pragma unroll
  for (int i = 0; i < 2 * kBlocksS; ++i) {
    const float(&c)[4] = other[i / 2][i % 2];
    ptx::StoreShared128(place(Warp(), i), c[0], c[1], c[2], c[3]);
  }
  ptx::BarrierOfTwo(1 + min(Warp(), partner) / kScoreWarps / 2 * kScoreWarps +
                    Warp() % kScoreWarps);
#pragma unroll
  for (int i = 0; i < 2 * kBlocksS; ++i) {
    const uint4 words = ptx::LoadShared128(place(partner, i));
    const float given[4] = {__uint_as_float(words.x), __uint_as_float(words.y),
                            __uint_as_float(words.z), __uint_as_float(words.w)};
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float mine = own[i / 2][i % 2][e];
      s[i / 2][i % 2][e] = has_dp ? given[e] : mine;
      dp[i / 2][i % 2][e] = has_dp ? mine : given[e];
    }
  }
}

// sums += X Y: X of 16 columns in kBlocksM fragments, 16 rows of Y from `row` on, of columns the
// part-th kPart.
template <int kDim, int kPart>
__device__ __forceinline__ void Accumulate(const unsigned (*x)[4], unsigned y_tile, int row,
                                           int part, Sums<kPart>& sums) {
  constexpr bool kFolded = IsPowerOfTwo(kPart);
  const auto lane = FragmentLane<kDim>::RowsFirst().Behind(kFolded ? part * kPart / 8 : 0);
  Multiply<kDtype>(x, lane, y_tile, row, kFolded ? 0 : part * kPart / 8, sums);
}

// What the scores of a visited tile are computed with.
struct Step {
  ScoreScale scale;
  Dropout dropout;
  unsigned stats;       // of the warp's queries, in shared memory
  const int2* ranges;   // of them
  int left;             // so many are there
  unsigned bias, mask;  // of the warp's part
  int i0, j0;           // query and key of the warp's first column and row
  float first;          // ALiBi: i0 + diag - j0
  bool cut;
};

// This lane's two keys and four queries of a fragment, from its corner.
__device__ __forceinline__ int KeyOf(int m, int r) {
  return 16 * m + Lane() / 4 + 8 * r;
}
__device__ __forceinline__ int QueryOf(int n) {
  return 8 * n + Lane() % 4 * 2;
}

// The bias of 16 queries from `query` on, of the warp's part and its keys from 16 m on, as the
// fragment's elements: of queries 0-7, then 8-15.
__device__ __forceinline__ void LoadBias(unsigned tile, int query, int m, float (&bias)[2][4]) {
  if constexpr (config::bias_type == config::f32) {
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      const int row = query + QueryOf(e / 4) + (e & 1);
      bias[e / 4][e % 4] =
          __uint_as_float(ptx::LoadShared32(tile + BiasTile::At(row, KeyOf(m, (e >> 1) & 1))));
    }
  } else if constexpr (kHasBias) {
    // Tiles (queries 0-7, 8-15) x (keys 0-7, 8-15), transposed on the way.
    const int row = query + Lane() % 8 + (Lane() / 16) * 8;
    const int column = 16 * m + (Lane() / 8) % 2 * 8;
    unsigned pairs[4];
    ptx::LoadMatrixTransposed(pairs, tile + BiasTile::At(row, column));
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      bias[e / 2][e % 2 * 2] = ptx::Low<config::bias_type>(pairs[e]);
      bias[e / 2][e % 2 * 2 + 1] = ptx::High<config::bias_type>(pairs[e]);
    }
  }
}

// s = log2(p): from raw products of kChunk queries, from `query` of the warp's part on. `slope`
// becomes the derivative of the score with softcap.
template <bool in_series>
__device__ __forceinline__ void Score(const Arguments& a, const Step& step, int query,
                                      const float (&stats)[kBlocksN][4], Scores& s, Scores& slope) {
#pragma unroll
  for (int m = 0; m < kBlocksS; ++m) {
    float bias[kBlocksN][4] = {};
    if constexpr (kHasBias) {
#pragma unroll
      for (int n = 0; n < kBlocksN; n += 2) {
        LoadBias(step.bias, query + 8 * n, m, reinterpret_cast<float(&)[2][4]>(bias[n]));
      }
    }
#pragma unroll
    for (int n = 0; n < kBlocksN; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float lse = stats[n][e % 2 * 2];
        if constexpr (kModified) {
          const int distance = query + QueryOf(n) + e % 2 - KeyOf(m, e / 2);
          float unused;
          s[m][n][e] = shared::Score<in_series>(
              a, step.scale, s[m][n][e], step.first + static_cast<float>(distance), bias[n][e],
              -lse, config::softcap != 0 ? slope[m][n][e] : unused);
        } else {
          s[m][n][e] = fmaf(s[m][n][e], step.scale.raw, -lse);
        }
        if constexpr (kHasMask) {
          const int row = query + QueryOf(n) + e % 2;
          if (ptx::LoadShared8(step.mask + MaskTile::At(row, KeyOf(m, e / 2))) == 0) {
            s[m][n][e] = -kInfinity;
          }
        }
      }
  }
}

// Hides what the queries don't see.
__device__ __forceinline__ void HideByRange(const Step& step, int query, Scores& s) {
#pragma unroll
  for (int n = 0; n < kBlocksN; ++n) {
    int2 ranges[2];
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) {
      const int row = query + QueryOf(n) + odd;
      ranges[odd] = row < step.left ? step.ranges[row] : int2{0, 0};
    }
#pragma unroll
    for (int m = 0; m < kBlocksS; ++m)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int2 keys = ranges[e % 2];
        const int key = step.j0 + KeyOf(m, e / 2);
        if (key < keys.x || key >= keys.y) s[m][n][e] = -kInfinity;
      }
  }
}

// {lse, delta} of this lane's two queries of each accumulator.
using Stats = float[kBlocksN][4];
__device__ __forceinline__ void LoadStats(const Step& step, int query, Stats& stats) {
#pragma unroll
  for (int n = 0; n < kBlocksN; ++n) {
    const uint4 pair =
        ptx::LoadShared128(step.stats + 8 * static_cast<unsigned>(query + QueryOf(n)));
    stats[n][0] = __uint_as_float(pair.x);
    stats[n][1] = __uint_as_float(pair.y);
    stats[n][2] = __uint_as_float(pair.z);
    stats[n][3] = __uint_as_float(pair.w);
  }
}

// Dropout's bytes of kChunk queries, of blocks of 16 keys and 16 queries.
using ChunkDraws = Draws[kBlocksN / 2][kBlocksS];
__device__ __forceinline__ void DrawChunk(const Step& step, int query, ChunkDraws& draws) {
  const int i = step.i0 + query;
  if constexpr (config::dropout != 0 && kBlocksN == 4) {
#pragma unroll
    for (int m = 0; m < kBlocksS; ++m) {
      DrawTransposed<false>(step.dropout, i, step.j0 + 16 * m, draws[0][m], draws[1][m]);
    }
  } else if constexpr (config::dropout != 0) {
    Draws unused;
    DrawTransposed<true>(step.dropout, i, step.j0, draws[0][0],
                         kBlocksS == 2 ? draws[0][kBlocksS - 1] : unused);
  }
}

// From raw products s of kChunk queries to P^T: in p_pairs with dropout, rounded and packed; in s
// without it, times the derivative of softcap.
__device__ __forceinline__ void Exponentiate(const Arguments& a, const Step& step, int query,
                                             const Stats& stats, const ChunkDraws& draws, Scores& s,
                                             Fragments& p_pairs) {
  Scores slope;
  if (IsInSeries(a, s)) {
    Score<true>(a, step, query, stats, s, slope);
  } else {
    Score<false>(a, step, query, stats, s, slope);
  }
  if (step.cut) HideByRange(step, query, s);
#pragma unroll
  for (int m = 0; m < kBlocksS; ++m)
#pragma unroll
    for (int n = 0; n < kBlocksN; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) s[m][n][e] = ptx::Exp2(s[m][n][e]);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        unsigned pair = ptx::Pack<kDtype>(s[m][n][2 * r], s[m][n][2 * r + 1]);
        if constexpr (config::dropout != 0) {
          pair = DropPair<kDtype>(pair, Keeps<true>(step.dropout, draws[n / 2][m], n % 2, r));
        }
        p_pairs[n / 2][m][n % 2 * 2 + r] = pair;
      }
      if constexpr (config::softcap != 0) {
#pragma unroll
        for (int e = 0; e < 4; ++e) s[m][n][e] *= slope[m][n][e];
      }
    }
}

// From what Exponentiate() left in p and raw products dp to dS^T, rounded and packed.
__device__ __forceinline__ void Differentiate(const Arguments& a, const Step& step, int query,
                                              const Stats& stats, const ChunkDraws& draws,
                                              const Scores& p, Scores& dp, Fragments& ds_pairs) {
#pragma unroll
  for (int m = 0; m < kBlocksS; ++m)
#pragma unroll
    for (int n = 0; n < kBlocksN; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float gradient = dp[m][n][e];
        const float delta = stats[n][e % 2 * 2 + 1];
        if constexpr (config::dropout != 0) {
          const unsigned keeps = Keeps<true>(step.dropout, draws[n / 2][m], n % 2, e / 2);
          gradient = fmaf(gradient, KeepsOne(keeps, e % 2) * a.keep_scale, -delta);
        } else {
          gradient -= delta;
        }
        dp[m][n][e] = p[m][n][e] * gradient;
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        ds_pairs[n / 2][m][n % 2 * 2 + r] = ptx::Pack<kDtype>(dp[m][n][2 * r], dp[m][n][2 * r + 1]);
      }
    }
}

// Fragments into a tile [keys][queries], at the warp's part.
__device__ __forceinline__ void StoreTransposed(const Fragments& pairs, unsigned tile, int key,
                                                int query) {
  static_assert(kTileQ % kChunk == 0 && IsPowerOfTwo(kChunk));
  const auto place = [&](int m, int r, int n) {
    if constexpr (kExchange) {
      const auto lane = FragmentLane<kTileQ>::Pair(ptx::ThreadAnew() % 32).Behind(query / 8);
      return lane.At(tile, key + 16 * m + 8 * r, n);
    } else {  // found anew for each: kept, it spills
      return tile + PairLayout::At(key + KeyOf(m, r), query / 8 + n) + Lane() % 4 * 4;
    }
  };
#pragma unroll
  for (int n = 0; n < kBlocksN; ++n)
#pragma unroll
    for (int m = 0; m < kBlocksS; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        ptx::StoreShared32(place(m, r, n), pairs[n / 2][m][n % 2 * 2 + r]);
      }
}

}  // namespace backward
