// sm80/backward.cu: P and dS of a warp's part of a tile, transposed, from S and dP.
#pragma once
#include "sm80/backward_tile.cuh"

namespace sm80::backward {

// Inputs of the scores of the warp's part of a tile.
struct ScoreContext {
  ScoreParams params;
  Dropout dropout;
  int key, query;        // the part's first key and query, in the tile
  unsigned lse_delta;    // of the part's queries, in shared memory
  const int2* ranges;    // of the part's queries, in global memory
  int num_queries;       // queries of the part that exist
  unsigned bias, mask;   // the warp's buffers, in shared memory
  int i0, j0;            // the part's first query and key, in the sequence
  float first_diagonal;  // ALiBi: i0 + diag - j0
  bool partial;          // some row does not see every key of the tile

  __device__ __forceinline__ ScoreContext(int tile_j0, unsigned base) {
    key = Warp() % kScoreWarps * kScoreKeys;
    query = Warp() / kScoreWarps * kScoreQueries;
    bias = base + kShared.bias +
           static_cast<unsigned>(Warp() * kScoreQueries * kScoreKeys * kBiasBytes);
    mask = base + kShared.mask + static_cast<unsigned>(Warp() * kScoreQueries * kScoreKeys);
    j0 = tile_j0 + key;
  }

  // Moves to the tile of queries that starts at tile_i0. Row r of the sequence has its range at
  // row_ranges + 2 * (first_row + r).
  __device__ __forceinline__ void SetTile(const Arguments& a, const Sequence& seq, int head,
                                          int tile_i0, long long first_row, unsigned base,
                                          bool is_partial) {
    params = ScoreParamsOf(a, seq.idx, head);
    if constexpr (kHasDropout) dropout = DropoutOf(a, seq.idx, head);
    lse_delta = base + kShared.lse_delta + static_cast<unsigned>(8 * query);
    ranges = reinterpret_cast<const int2*>(a.row_ranges) + first_row + tile_i0 + query;
    num_queries = seq.len_q - tile_i0 - query;
    i0 = tile_i0 + query;
    first_diagonal = static_cast<float>(i0 + seq.diag - j0);
    partial = is_partial;
  }
};

// Loads the bias of 16 queries from `query` and 16 keys from 16 m of the warp's part, in the order
// of the fragment's elements: queries 0-7, then 8-15.
__device__ __forceinline__ void LoadBias(unsigned tile, int query, int m, float (&bias)[2][4]) {
  if constexpr (config::bias_type == config::f32) {
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      const int row = query + QueryOf(e / 4) + (e & 1);
      bias[e / 4][e % 4] =
          __uint_as_float(ptx::LoadShared32(tile + BiasTile::At(row, KeyOf(m, (e >> 1) & 1))));
    }
  } else if constexpr (kHasBias) {
    // Four 8 x 8 matrices, (queries 0-7, 8-15) x (keys 0-7, 8-15); ldmatrix.trans transposes them.
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

// {lse, delta} of this lane's two queries of each accumulator.
using LseDelta = float[kBlocksN][4];
__device__ __forceinline__ void LoadLseDelta(const ScoreContext& context, int query,
                                             LseDelta& lse_delta) {
#pragma unroll
  for (int n = 0; n < kBlocksN; ++n) {
    const uint4 pair =
        ptx::LoadShared128(context.lse_delta + 8 * static_cast<unsigned>(query + QueryOf(n)));
    lse_delta[n][0] = __uint_as_float(pair.x);
    lse_delta[n][1] = __uint_as_float(pair.y);
    lse_delta[n][2] = __uint_as_float(pair.z);
    lse_delta[n][3] = __uint_as_float(pair.w);
  }
}

// Applies score modifiers and mask: turns raw products of kChunk queries, from `query` of the
// warp's part on, into log2(P). Sets `slope` to the derivative of softcap.
template <bool in_series>
__device__ __forceinline__ void ApplyScoreMods(const Arguments& a, const ScoreContext& context,
                                               int query, const LseDelta& lse_delta, Scores& s,
                                               Scores& slope) {
#pragma unroll
  for (int m = 0; m < kBlocksS; ++m) {
    float bias[kBlocksN][4] = {};
    if constexpr (kHasBias) {
#pragma unroll
      for (int n = 0; n < kBlocksN; n += 2) {
        LoadBias(context.bias, query + 8 * n, m, reinterpret_cast<float(&)[2][4]>(bias[n]));
      }
    }
#pragma unroll
    for (int n = 0; n < kBlocksN; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float lse = lse_delta[n][e % 2 * 2];
        if constexpr (kHasScoreMod) {
          const int distance = query + QueryOf(n) + e % 2 - KeyOf(m, e / 2);
          float unused;
          s[m][n][e] = ModifyScore<in_series>(
              a, context.params, s[m][n][e], context.first_diagonal + static_cast<float>(distance),
              bias[n][e], -lse, config::softcap != 0 ? slope[m][n][e] : unused);
        } else {
          s[m][n][e] = fmaf(s[m][n][e], context.params.raw, -lse);
        }
        if constexpr (kHasMask) {
          const int row = query + QueryOf(n) + e % 2;
          if (ptx::LoadShared8(context.mask + MaskTile::At(row, KeyOf(m, e / 2))) == 0) {
            s[m][n][e] = -kInfinity;
          }
        }
      }
  }
}

// Sets the scores of keys that a query does not see to -inf. Only partial tiles need it.
__device__ __forceinline__ void HideByRange(const ScoreContext& context, int query, Scores& s) {
#pragma unroll
  for (int n = 0; n < kBlocksN; ++n) {
    int2 ranges[2];
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) {
      const int row = query + QueryOf(n) + odd;
      ranges[odd] = row < context.num_queries ? context.ranges[row] : int2{0, 0};
    }
#pragma unroll
    for (int m = 0; m < kBlocksS; ++m)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int2 keys = ranges[e % 2];
        const int key = context.j0 + KeyOf(m, e / 2);
        if (key < keys.x || key >= keys.y) s[m][n][e] = -kInfinity;
      }
  }
}

// Dropout bytes of kChunk queries, in blocks of 16 keys x 16 queries.
using ChunkBits = DropoutBits[kBlocksN / 2][kBlocksS];
__device__ __forceinline__ void GenerateChunkBits(const ScoreContext& context, int query,
                                                  ChunkBits& bits) {
  const int i = context.i0 + query;
  if constexpr (kHasDropout && kBlocksN == 4) {
#pragma unroll
    for (int m = 0; m < kBlocksS; ++m) {
      GenerateBitsTransposed<false>(context.dropout, i, context.j0 + 16 * m, bits[0][m],
                                    bits[1][m]);
    }
  } else if constexpr (kHasDropout) {
    DropoutBits unused;
    GenerateBitsTransposed<true>(context.dropout, i, context.j0, bits[0][0],
                                 kBlocksS == 2 ? bits[0][kBlocksS - 1] : unused);
  }
}

// f32: block n of accumulators as an operand, or as it is if it goes to shared memory.
__device__ __forceinline__ void KeepFragment(const float (&c)[4], int n, unsigned (*fragments)[4]) {
  if constexpr (kPDsInSmem) {
#pragma unroll
    for (int e = 0; e < 4; ++e) fragments[n][e] = __float_as_uint(c[e]);
  } else {
    SplitFragment(c, &fragments[n * kParts]);
  }
}

// Turns raw products s of kChunk queries into P^T. p_pairs receives P with dropout applied, as
// operands of dV: rounded to 16 bits, or in f32 split into parts. s becomes P without dropout,
// times the derivative of softcap.
__device__ __forceinline__ void ComputeP(const Arguments& a, const ScoreContext& context, int query,
                                         const LseDelta& lse_delta, const ChunkBits& bits,
                                         Scores& s, Fragments& p_pairs) {
  Scores slope;
  if (CapSeriesHolds(a, s)) {
    ApplyScoreMods<true>(a, context, query, lse_delta, s, slope);
  } else {
    ApplyScoreMods<false>(a, context, query, lse_delta, s, slope);
  }
  if (context.partial) HideByRange(context, query, s);
#pragma unroll
  for (int m = 0; m < kBlocksS; ++m)
#pragma unroll
    for (int n = 0; n < kBlocksN; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) s[m][n][e] = ptx::Exp2(s[m][n][e]);
      if constexpr (kF32) {
        float kept[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          kept[e] = s[m][n][e];
          if constexpr (kHasDropout) {
            kept[e] *=
                KeepFactor(KeepFactors<true>(context.dropout, bits[n / 2][m], n % 2, e / 2), e % 2);
          }
        }
        KeepFragment(kept, n, p_pairs[m]);
      } else {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          unsigned pair = ptx::Pack<kDtype>(s[m][n][2 * r], s[m][n][2 * r + 1]);
          if constexpr (kHasDropout) {
            pair = ApplyDropout<kDtype>(
                pair, KeepFactors<true>(context.dropout, bits[n / 2][m], n % 2, r));
          }
          p_pairs[n / 2][m][n % 2 * 2 + r] = pair;
        }
      }
      if constexpr (config::softcap != 0) {
#pragma unroll
        for (int e = 0; e < 4; ++e) s[m][n][e] *= slope[m][n][e];
      }
    }
}

// Computes dS^T from ComputeP()'s s, here `p`, and from raw products dp. ds_pairs receives dS as
// operands of dK; dp becomes dS in f32.
__device__ __forceinline__ void ComputeDs(const Arguments& a, const ScoreContext& context,
                                          int query, const LseDelta& lse_delta,
                                          const ChunkBits& bits, const Scores& p, Scores& dp,
                                          Fragments& ds_pairs) {
#pragma unroll
  for (int m = 0; m < kBlocksS; ++m)
#pragma unroll
    for (int n = 0; n < kBlocksN; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float gradient = dp[m][n][e];
        const float delta = lse_delta[n][e % 2 * 2 + 1];
        if constexpr (kHasDropout) {
          const unsigned keeps = KeepFactors<true>(context.dropout, bits[n / 2][m], n % 2, e / 2);
          gradient = fmaf(gradient, KeepFactor(keeps, e % 2) * a.keep_scale, -delta);
        } else {
          gradient -= delta;
        }
        dp[m][n][e] = p[m][n][e] * gradient;
      }
      if constexpr (kF32) {
        KeepFragment(dp[m][n], n, ds_pairs[m]);
      } else {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          ds_pairs[n / 2][m][n % 2 * 2 + r] =
              ptx::Pack<kDtype>(dp[m][n][2 * r], dp[m][n][2 * r + 1]);
        }
      }
    }
}

// f32: stores accumulators to the warp's part of a tile [keys][queries], rounded if kRoundsTiles.
// element(m, n, e) are the bits of an accumulator.
template <class Element>
__device__ __forceinline__ void StoreTransposedF32(const Element& element, unsigned tile, int key,
                                                   int query) {
  const auto stored = [&](int m, int n, int e) {
    const unsigned bits = element(m, n, e);
    return __uint_as_float(kRoundsTiles ? RoundToTf32(bits) : bits);
  };
#pragma unroll
  for (int n = 0; n < kBlocksN; ++n)
#pragma unroll
    for (int m = 0; m < kBlocksS; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int column = query + QueryOf(n);
        ptx::StoreShared64(tile + PDsLayout::At(key + KeyOf(m, r), column / kChunkElements) +
                               static_cast<unsigned>(column % kChunkElements * kElementBytes),
                           stored(m, n, 2 * r), stored(m, n, 2 * r + 1));
      }
}

// Stores fragments to the warp's part of a tile [keys][queries].
__device__ __forceinline__ void StoreTransposed(const Fragments& pairs, unsigned tile, int key,
                                                int query) {
  static_assert(kTileQ % kChunk == 0 && IsPowerOfTwo(kChunk));
  const auto at = [&](int m, int r, int n) {
    if constexpr (kPDsInSmem) {
      const auto lane =
          FragmentLane<kTileQ>::Pair(ptx::RereadThreadIdx() % 32).StartingAt(query / 8);
      return lane.At(tile, key + 16 * m + 8 * r, n);
    } else {  // recomputed for each store: keeping it spills
      return tile + PDsLayout::At(key + KeyOf(m, r), query / 8 + n) + Lane() % 4 * 4;
    }
  };
#pragma unroll
  for (int n = 0; n < kBlocksN; ++n)
#pragma unroll
    for (int m = 0; m < kBlocksS; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        ptx::StoreShared32(at(m, r, n), pairs[n / 2][m][n % 2 * 2 + r]);
      }
}

}  // namespace sm80::backward
