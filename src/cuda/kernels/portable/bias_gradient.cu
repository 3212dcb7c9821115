// dbias: the sum of ds over what the bias broadcasts, recomputed from q, k, v, dout and row
// statistics. A kernel of its own: two more products, but no atomics, so that it is deterministic
// at any broadcast shape, and no memory but the gradient's own shape.
//
// Grid: one block for each (part of the sum, tile of the bias's queries and keys, head and batch
// entry of the bias); a broadcast dimension counts once. A block adds up ds of its tile over the
// problems (batch, head, tile of queries, tile of keys) that share the tile; a warp owns 32 queries
// of it. Where queries or keys are broadcast, rows or columns are added up at the end. Several
// parts, or such sums, go to config-free bias_gradient_sum.cu by way of a.partials; else the block
// writes the result.
//
// Config: dtype; dim_qk, dim_vo (rounded up); tile_q, tile_kv, warps, blocks; softcap, alibi,
// bias_type, mask, dropout. Shared memory: bias_gradient_shared.cuh.
#include "config.cuh"
#include "portable/bias_gradient_shared.cuh"
#include "ptx/memory.cuh"
#include "shared/dropout.cuh"
#include "shared/entry.cuh"
#include "shared/output.cuh"
#include "shared/pair_tile.cuh"
#include "shared/product.cuh"
#include "shared/score.cuh"
#include "shared/tile.cuh"

namespace {

using namespace shared;

constexpr int kDtype = config::dtype;
constexpr int kTileQ = config::tile_q;
constexpr int kTileKv = config::tile_kv;
constexpr int kWarps = config::warps;
constexpr int kThreads = 32 * kWarps;
constexpr int kDimQk = config::dim_qk;
constexpr int kDimVo = config::dim_vo;
constexpr int kRows = kTileQ / kWarps;
constexpr int kBlocksM = kRows / 16;
constexpr int kBlocksN = kTileKv / 8;
constexpr int kBiasBytes = ElementBytes(config::bias_type);
constexpr attn::device::BiasGradientShared kShared = attn::device::BiasGradientSharedOf(
    kTileQ, kTileKv, kDimQk, kDimVo, kBiasBytes, config::mask != 0);

using BiasTile = PairTile<kRows, kTileKv, kBiasBytes>;
using MaskTile = PairTile<kRows, config::mask != 0 ? kTileKv : 64, 1>;
using Scores = float[kBlocksM][kBlocksN][4];

__device__ __forceinline__ int RowOf(int m, int r) {
  return 16 * m + static_cast<int>(threadIdx.x) % 32 / 4 + 8 * r;
}
__device__ __forceinline__ int ColumnOf(int n) {
  return 8 * n + static_cast<int>(threadIdx.x) % 4 * 2;
}

// c = X Y^T of the warp's rows of X.
template <int kDim>
__device__ __forceinline__ void MultiplyRows(unsigned x_tile, unsigned y_tile, Scores& c) {
  const auto x_lane = FragmentLane<kDim>::RowsFirst();
  const auto load = [&](int k, unsigned(&a)[kBlocksM][4]) {
#pragma unroll
    for (int m = 0; m < kBlocksM; ++m) ptx::LoadMatrix(a[m], x_lane.At(x_tile, 16 * m, 2 * k));
  };
  MultiplyTransposed<kDtype, kDim>(load, y_tile, 0, c);
}

// One problem that shares the tile: where it is, and the rows of the warp.
struct Visit {
  int head;
  int i0, j0;  // first query of the warp, first key
  unsigned bias_tile, mask_tile;
  KeyRange keys[kBlocksM][2];
  float lse[kBlocksM][2];  // in units of log2; infinite where nothing is seen
  float delta[kBlocksM][2];
};

// ds of the tile, added to `sums`.
__device__ __forceinline__ void AddGradient(const Arguments& a, const Entry& entry,
                                            const Visit& visit, Scores& s, const Scores& dp,
                                            Scores& sums) {
  const ScoreScale scale = ScoreScaleOf(a, entry.b, visit.head);
  Dropout dropout{};
  if constexpr (config::dropout != 0) dropout = DropoutOf(a, entry.b, visit.head);
#pragma unroll
  for (int m = 0; m < kBlocksM; ++m)
#pragma unroll
    for (int n = 0; n < kBlocksN; n += 4) {
      Flags flags[2];
      if constexpr (config::dropout != 0) {
        const int i = visit.i0 + 16 * m;
        const int j = visit.j0 + 8 * n;
        if (dropout.aligned) {
          DrawBlocks(dropout, i, j, flags[0], flags[1]);
        } else {
#pragma unroll
          for (int c = 0; c < 2; ++c) {
            flags[c] = DrawElements<false>(dropout, i + RowOf(0, 0), j + 16 * c + ColumnOf(0));
          }
        }
      }
#pragma unroll
      for (int c = 0; c < 4; ++c)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int row = RowOf(m, r);
          const int column = ColumnOf(n + c);
          const float2 bias = BiasTile::Floats<config::bias_type>(visit.bias_tile, row, column);
          unsigned mask = 0x0101;
          if constexpr (config::mask != 0) mask = MaskTile::Bytes(visit.mask_tile, row, column);
          const float distance =
              static_cast<float>(visit.i0 + entry.diag - visit.j0) + static_cast<float>(row);
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const int key = visit.j0 + column + e;
            float slope;
            const float score =
                Score<config::softcap != 0>(a, scale, s[m][n + c][2 * r + e], distance - static_cast<float>(column + e),
                      e == 0 ? bias.x : bias.y, slope);
            float p = ptx::Exp2(score - visit.lse[m][r]);
            const KeyRange keys = visit.keys[m][r];
            const bool hidden =
                key < keys.begin || key >= keys.end || (mask & (e == 0 ? 0xffu : 0xff00u)) == 0;
            if (hidden) p = 0.0f;
            float gradient = dp[m][n + c][2 * r + e];
            if constexpr (config::dropout != 0) {
              gradient = KeepOrZero(flags[c / 2], c % 2, r, e, gradient) * a.keep_scale;
            }
            sums[m][n + c][2 * r + e] += p * (gradient - visit.delta[m][r]);
          }
        }
    }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads, config::blocks)
    attn_bias_gradient(const __grid_constant__ Arguments a) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const unsigned base = ptx::SharedAddress(memory);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const bool full_b = (a.dbias_full & 8) != 0;
  const bool full_h = (a.dbias_full & 4) != 0;
  const bool full_q = (a.dbias_full & 2) != 0;
  const bool full_kv = (a.dbias_full & 1) != 0;
  const int q_tiles = (a.max_len_q + kTileQ - 1) / kTileQ;
  const int kv_tiles = (a.max_len_kv + kTileKv - 1) / kTileKv;

  // This block's part and place; the last dimension counts fastest.
  unsigned rest = blockIdx.x;
  const auto take = [&](bool full, int count) {
    if (!full) return 0;
    const int index = static_cast<int>(rest % static_cast<unsigned>(count));
    rest /= static_cast<unsigned>(count);
    return index;
  };
  const int kv_place = take(full_kv, kv_tiles);
  const int q_place = take(full_q, q_tiles);
  const int h_place = take(full_h, a.heads_q);
  const int b_place = take(full_b, a.batch);
  const int part = static_cast<int>(rest);
  const int num_kv = full_kv ? 1 : kv_tiles;
  const int num_q = full_q ? 1 : q_tiles;
  const int num_h = full_h ? 1 : a.heads_q;
  const long long visits = 1ll * num_kv * num_q * num_h * (full_b ? 1 : a.batch);

  Scores sums{};
  Visit visit;
  visit.bias_tile = base + kShared.bias + static_cast<unsigned>(warp * kRows * BiasTile::kRowBytes);
  visit.mask_tile = base + kShared.mask + static_cast<unsigned>(warp * kRows * kTileKv);
  for (long long n = visits * part / a.splits; n < visits * (part + 1) / a.splits; ++n) {
    const int q_tile = q_place + static_cast<int>(n / num_kv % num_q);
    visit.head = h_place + static_cast<int>(n / num_kv / num_q % num_h);
    const Entry entry = EntryOf(a, b_place + static_cast<int>(n / num_kv / num_q / num_h));
    const int q0 = q_tile * kTileQ;
    visit.j0 = (kv_place + static_cast<int>(n % num_kv)) * kTileKv;
    visit.i0 = q0 + warp * kRows;
    const long long first_row = a.packed_q != 0 ? entry.first_q : 1ll * entry.b * a.max_len_q;
    bool sees = false;
#pragma unroll
    for (int m = 0; m < kBlocksM; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int i = visit.i0 + RowOf(m, r);
        visit.keys[m][r] = {0, 0};
        if (i < entry.len_q) {
          const int2 keys = reinterpret_cast<const int2*>(a.row_ranges)[first_row + i];
          visit.keys[m][r] = {keys.x, keys.y};
        }
        sees |= visit.keys[m][r].begin < visit.j0 + kTileKv && visit.keys[m][r].end > visit.j0;
      }
    if (__syncthreads_or(sees) == 0) continue;  // also: the tiles before have been read

    const int head_kv = visit.head / a.group;
    TileLoader<kDimQk, kTileQ, kThreads, kDtype>(
        a.q, a.dim_qk, RowAddress(a.q, entry.b, entry.first_q + q0, visit.head))
        .Load(base + kShared.q, 0, entry.len_q - q0);
    TileLoader<kDimQk, kTileKv, kThreads, kDtype>(
        a.k, a.dim_qk, RowAddress(a.k, entry.b, entry.first_kv + visit.j0, head_kv))
        .Load(base + kShared.k, 0, entry.len_kv - visit.j0);
    ptx::CopyCommit();
    BiasTile::Load(visit.bias_tile, a.bias,
                   PairAddress(a.bias, entry.b, visit.head, visit.i0, visit.j0),
                   entry.len_q - visit.i0, entry.len_kv - visit.j0);
    if constexpr (config::mask != 0) {
      MaskTile::Load(visit.mask_tile, a.mask,
                     PairAddress(a.mask, entry.b, visit.head, visit.i0, visit.j0),
                     entry.len_q - visit.i0, entry.len_kv - visit.j0);
    }
    TileLoader<kDimVo, kTileQ, kThreads, kDtype>(
        a.dout, a.dim_vo, RowAddress(a.dout, entry.b, entry.first_q + q0, visit.head))
        .Load(base + kShared.dout, 0, entry.len_q - q0);
    TileLoader<kDimVo, kTileKv, kThreads, kDtype>(
        a.v, a.dim_vo, RowAddress(a.v, entry.b, entry.first_kv + visit.j0, head_kv))
        .Load(base + kShared.v, 0, entry.len_kv - visit.j0);
    ptx::CopyCommit();
#pragma unroll
    for (int m = 0; m < kBlocksM; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int i = visit.i0 + RowOf(m, r);
        visit.lse[m][r] = kInfinity;  // p = 0
        visit.delta[m][r] = 0.0f;
        if (i >= entry.len_q) continue;
        const float2 stats = *reinterpret_cast<const float2*>(
            RowAddress(a.stats, entry.b, entry.first_q + i, visit.head));
        visit.lse[m][r] = stats.x;
        visit.delta[m][r] = stats.y;
      }
    Scores s;
    Scores dp;
    ptx::CopyWait<1>();
    __syncthreads();
    MultiplyRows<kDimQk>(base + kShared.q + static_cast<unsigned>(warp * kRows * kDimQk * 2),
                         base + kShared.k, s);
    ptx::CopyWait<0>();
    __syncthreads();
    MultiplyRows<kDimVo>(base + kShared.dout + static_cast<unsigned>(warp * kRows * kDimVo * 2),
                         base + kShared.v, dp);
    AddGradient(a, entry, visit, s, dp, sums);
  }

  // Sums of rows or columns, in a fixed order: lanes, then warps through shared memory.
  auto* column_sums = reinterpret_cast<float*>(memory + kShared.q);  // [warps][kTileKv]
  if (!full_kv) {
#pragma unroll
    for (int m = 0; m < kBlocksM; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float sum = 0.0f;
#pragma unroll
        for (int n = 0; n < kBlocksN; ++n) sum += sums[m][n][2 * r] + sums[m][n][2 * r + 1];
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        sums[m][0][2 * r] = sum;
      }
  }
  if (!full_q) {
    __syncthreads();
#pragma unroll
    for (int n = 0; n < kBlocksN; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float sum = 0.0f;
#pragma unroll
        for (int m = 0; m < kBlocksM; ++m) sum += sums[m][n][e] + sums[m][n][2 + e];
#pragma unroll
        for (int distance = 4; distance < 32; distance *= 2) {
          sum += __shfl_xor_sync(~0u, sum, distance);
        }
        if (threadIdx.x % 32 < 4) column_sums[warp * kTileKv + ColumnOf(n) + e] = sum;
      }
    __syncthreads();
#pragma unroll
    for (int n = 0; n < kBlocksN; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float sum = 0.0f;
        for (int w = 0; w < kWarps; ++w) sum += column_sums[w * kTileKv + ColumnOf(n) + e];
        sums[0][n][e] = sum;
      }
  }

  // [part][batch][head][query][key] of the bias's own shape.
  const long long len_q = full_q ? a.max_len_q : 1;
  const long long len_kv = full_kv ? a.max_len_kv : 1;
  const long long plane =
      ((1ll * part * (full_b ? a.batch : 1) + b_place) * (full_h ? a.heads_q : 1) + h_place) *
      len_q;
#pragma unroll
  for (int m = 0; m < kBlocksM; ++m)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row =
          full_q ? warp * kRows + RowOf(m, r) : static_cast<int>(threadIdx.x) / 4 + m + r;
      const long long i = 1ll * q_place * kTileQ + row;
      if (i >= len_q) continue;
#pragma unroll
      for (int n = 0; n < kBlocksN; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int column = full_kv ? ColumnOf(n) + e : ColumnOf(0) + n + e;
          const long long j = 1ll * kv_place * kTileKv + column;
          if (j >= len_kv) continue;
          const float sum = sums[m][n][2 * r + e];
          if (a.partials != nullptr) {
            a.partials[(plane + i) * len_kv + j] = sum;
          } else {
            StoreGradient(a, const_cast<char*>(PairAddress(a.dbias, b_place, h_place, i, j)),
                          a.dbias.type, sum);
          }
        }
    }
}
