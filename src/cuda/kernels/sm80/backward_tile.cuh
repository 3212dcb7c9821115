// sm80/backward.cu: how a tile is shared among warps and lanes, and the products of scores.
#pragma once
#include "config.cuh"
#include "ptx/memory.cuh"
#include "shared/dropout.cuh"
#include "shared/score.cuh"
#include "shared/sequence.cuh"
#include "sm80/backward_shared.cuh"
#include "sm80/bias_mask_tile.cuh"
#include "sm80/product.cuh"
#include "sm80/product_f32.cuh"
#include "sm80/sizes.cuh"
#include "sm80/tile.cuh"

namespace sm80::backward {

constexpr int kDimQk = config::dim_qk;
constexpr int kDimVo = config::dim_vo;
constexpr bool kPDsInSmem = config::p_ds_in_smem != 0;
constexpr bool kSplitDkDv = config::split_dk_dv != 0;
constexpr bool kSplitSDp = config::split_s_dp != 0;
static_assert(!kSplitDkDv || (kPDsInSmem && kDimQk == kDimVo));
static_assert(!kSplitSDp || kSplitDkDv);
constexpr bool kHasBias = config::bias_type != config::none;
constexpr bool kHasMask = config::mask != 0;
constexpr bool kHasDropout = config::dropout != 0;
constexpr int kBiasBytes = kHasBias ? ElementBytes(config::bias_type) : 2;
constexpr attn::device::BackwardShared kShared = attn::device::BackwardSharedOf(
    kTileQ, kTileKv, kStages, kDimQk, kDimVo, {kPDsInSmem, kSplitDkDv, kSplitSDp}, kWarps,
    kHasBias ? kBiasBytes : 0, kHasMask, kElementBytes);

// Scores: a warp computes kScoreKeys x kScoreQueries of a tile, kChunk queries at a time.
constexpr int kChunk = config::chunk;
constexpr int kScoreKeys = attn::device::BackwardScoreKeys(kTileKv, kWarps, kPDsInSmem);
constexpr int kScoreWarps = kTileKv / kScoreKeys;  // along the keys
constexpr int kScoreQueries =
    attn::device::BackwardScoreQueries(kTileQ, kTileKv, kWarps, kPDsInSmem);
// A small tile has scores for some of the warps only: the first kScoringWarps compute them.
constexpr int kScoringWarps = kScoreWarps * (kTileQ / kScoreQueries);
constexpr int kBlocksS = kScoreKeys / 16;
constexpr int kBlocksN = kChunk / 8;  // accumulators of 8 queries
// dK and dV: a warp accumulates kDkDvKeys keys and one of kDkDvParts parts of the dims.
constexpr int kDkDvKeys = kSplitDkDv ? (kTileKv < 64 ? kTileKv : 64) : kPDsInSmem ? 32 : kScoreKeys;
constexpr int kDkDvWarps = kTileKv / kDkDvKeys;
constexpr int kDkDvParts = kWarps / kDkDvWarps / (kSplitDkDv ? 2 : 1);
constexpr int kPartQk = kDimQk / kDkDvParts;
constexpr int kPartVo = kDimVo / kDkDvParts;
constexpr int kBlocksM = kDkDvKeys / 16;
// dQ: a warp computes a part of the queries and a part of the dims.
constexpr int kDqWarps = kDimQk % (8 * kWarps) == 0 && kTileQ >= 32 ? 2 : 4;  // along the queries
constexpr int kDqQueries = kTileQ / kDqWarps;
constexpr int kDqDims = kDimQk / (kWarps / kDqWarps);
// Dims of a warp's dQ that are computed at once. Above dim 256 they take 64 registers of a thread.
constexpr int kDqDimsPerPass = kDimQk > 256 ? 2048 / kDqQueries : kDqDims;
static_assert(kDqDims % kDqDimsPerPass == 0);
static_assert(kScoreKeys % 16 == 0 && kScoreQueries % kChunk == 0 && kDqQueries % 16 == 0);
static_assert(kChunk == 16 || kChunk == 32);
static_assert(kTileKv * (kSplitDkDv ? 2 : 1) * (kDimQk > kDimVo ? kDimQk : kDimVo) * 4 <=
              kShared.bytes);
static_assert(kTileQ <= kThreads);
static_assert(kPartQk % 16 == 0 && kPartVo % 16 == 0 && kDqDims % 16 == 0);
static_assert(!kSplitSDp || (kScoreQueries == 16 && kChunk == 16));

using QkLayout = TileLayout<kDimQk>;
using PDsLayout = TileLayout<kTileQ>;  // P and dS transposed: [keys][queries]
using BiasTile = BiasMaskTile<kScoreQueries, kScoreKeys, kBiasBytes>;
using MaskTile = BiasMaskTile<kScoreQueries, kScoreKeys, kHasMask ? 1 : 2>;

// kChunk queries of a warp's keys, transposed.
using Scores = float[kBlocksS][kBlocksN][4];
// The same scores as operands of a product: A fragments of 16 x 16, rounded. In f32, as
// MultiplyF32() takes them: kParts fragments of 16 x 8 for each of the kBlocksN blocks; with
// p_ds_in_smem the accumulators themselves.
constexpr int kFragments = kF32 ? kBlocksN * (kPDsInSmem ? 1 : kParts) : kBlocksN / 2;
using Fragments = unsigned[kF32 ? kBlocksS : kFragments][kF32 ? kFragments : kBlocksS][4];
// tf32: the block rounds Q, dO, K, V and dS in shared memory once, because each warp would round
// them again for each product: two instructions for each operand of a lane.
constexpr bool kRoundsTiles = kF32 && config::precision == config::tf32;
static_assert(!kF32 || (kPDsInSmem == kSplitDkDv && !kSplitSDp && config::kv_in_registers == 0));
static_assert(kStages == 1 || kStages == 2);
template <int dims>
using Accumulator = float[kBlocksM][dims / 8][4];

__device__ __forceinline__ int Lane() {
  return static_cast<int>(threadIdx.x) % 32;
}
__device__ __forceinline__ int Warp() {
  return static_cast<int>(threadIdx.x) / 32;
}
// The warp's index among the warps that accumulate the same gradient.
__device__ __forceinline__ int DkDvWarp() {
  return kSplitDkDv ? Warp() % (kWarps / 2) : Warp();
}
// With split_dk_dv: whether the warp accumulates dV, else dK.
__device__ __forceinline__ bool AccumulatesDv() {
  return Warp() < kWarps / 2;
}
// This lane's elements in the warp's part: keys KeyOf(m, 0) and KeyOf(m, 1), queries QueryOf(n) and
// QueryOf(n) + 1.
__device__ __forceinline__ int KeyOf(int m, int r) {
  return 16 * m + Lane() / 4 + 8 * r;
}
__device__ __forceinline__ int QueryOf(int n) {
  return 8 * n + Lane() % 4 * 2;
}

// Fragments of K and V of the warp's keys, in registers if config::kv_in_registers, else empty.
struct KvFragments {
  static constexpr bool kKept = !kPDsInSmem && config::kv_in_registers != 0;
  unsigned k[kKept ? kDimQk / 16 : 1][kBlocksS][4];
  unsigned v[kKept ? kDimVo / 16 : 1][kBlocksS][4];

  __device__ __forceinline__ void Load(unsigned k_tile, unsigned v_tile, int score_key) {
    if constexpr (kKept) {
      const auto k_lane = FragmentLane<kDimQk>::RowsFirst();
      const auto v_lane = FragmentLane<kDimVo>::RowsFirst();
#pragma unroll
      for (int m = 0; m < kBlocksS; ++m) {
#pragma unroll
        for (int n = 0; n < kDimQk / 16; ++n) {
          ptx::LoadMatrix(k[n][m], k_lane.At(k_tile, score_key + 16 * m, 2 * n));
        }
#pragma unroll
        for (int n = 0; n < kDimVo / 16; ++n) {
          ptx::LoadMatrix(v[n][m], v_lane.At(v_tile, score_key + 16 * m, 2 * n));
        }
      }
    }
  }
};

// c = X Y^T over kDim columns. X: rows from x_row of its tile, or the fragments in `kept`. Y:
// kChunk rows from y_row.
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
  if constexpr (kF32) {
    const auto from = static_cast<unsigned>(x_row * TileLayout<kDim>::kRowBytes);
    MultiplyTransposedF32<kDim, kRoundsTiles>(load, x_tile + from, y_tile, y_row, c);
  } else {
    MultiplyTransposed<kDtype, kDim>(load, y_tile, y_row, c);
  }
}

// With split_s_dp: two warps with the same keys have adjacent groups of 16 queries. One warp
// computes S of both groups and the other dP, so that each fragment of K or V feeds twice as many
// products. Each then passes the results for the other's group to it, through shared memory at
// `swap`.
__device__ __forceinline__ void MultiplySplit(unsigned k_tile, unsigned v_tile, int key,
                                              unsigned q_tile, unsigned dout_tile, int query,
                                              unsigned swap, Scores& s, Scores& dp) {
  static_assert(kDimQk == kDimVo || !kSplitSDp);
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
  // The partner's queries are 16 away, so its warp index differs by kScoreWarps.
  const int partner = Warp() ^ kScoreWarps;
  const auto slot = [&](int warp, int i) {
    return swap + static_cast<unsigned>(warp * kBlocksS * 1024 + i * 512 + Lane() * 16);
  };
#pragma unroll
  for (int i = 0; i < 2 * kBlocksS; ++i) {
    const float(&c)[4] = other[i / 2][i % 2];
    ptx::StoreShared128(slot(Warp(), i), c[0], c[1], c[2], c[3]);
  }
  ptx::SyncTwoWarps(1 + min(Warp(), partner) / kScoreWarps / 2 * kScoreWarps +
                    Warp() % kScoreWarps);
#pragma unroll
  for (int i = 0; i < 2 * kBlocksS; ++i) {
    const uint4 words = ptx::LoadShared128(slot(partner, i));
    const float received[4] = {__uint_as_float(words.x), __uint_as_float(words.y),
                               __uint_as_float(words.z), __uint_as_float(words.w)};
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float computed = own[i / 2][i % 2][e];
      s[i / 2][i % 2][e] = has_dp ? received[e] : computed;
      dp[i / 2][i % 2][e] = has_dp ? computed : received[e];
    }
  }
}

// sums += X Y. X: 16 columns in kBlocksM fragments. Y: 16 rows from `row`, kPart columns from part
// * kPart.
template <int kDim, int kPart>
__device__ __forceinline__ void Accumulate(const unsigned (*x)[4], unsigned y_tile, int row,
                                           int part, Accumulator<kPart>& sums) {
  constexpr bool kFoldsChunk = IsPowerOfTwo(kPart);
  const auto lane = FragmentLane<kDim>::RowsFirst().StartingAt(kFoldsChunk ? part * kPart / 8 : 0);
  Multiply<kDtype>(x, lane, y_tile, row, kFoldsChunk ? 0 : part * kPart / 8, sums);
}

// The same for all fragments of a chunk: Y has kChunk rows from `row`. Only without p_ds_in_smem.
// In f32 the columns of the sums are those of MultiplyF32().
template <int kDim, int kPart>
__device__ __forceinline__ void AccumulateChunk(const Fragments& x, unsigned y_tile, int row,
                                                Accumulator<kPart>& sums) {
  if constexpr (kF32) {
    static_assert(kPart == kDim || kPDsInSmem);
    const auto from = static_cast<unsigned>(row * TileLayout<kDim>::kRowBytes);
    MultiplyF32<kDim, kChunk, kRoundsTiles>(x, y_tile + from, sums);
  } else {
#pragma unroll
    for (int k = 0; k < kFragments; ++k) {
      Accumulate<kDim, kPart>(x[k], y_tile, row + 16 * k, 0, sums);
    }
  }
}

}  // namespace sm80::backward
