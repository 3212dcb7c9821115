// dbias where backward.cu does not add it up: the sum of ds over what the bias broadcasts,
// recomputed from q, k, v, dout and row statistics. Two more products, but no atomics, so that it
// is deterministic at any broadcast shape, and no memory but the gradient's own shape.
//
// Grid: one block for each (part of the sum, tile of the bias's queries and keys, head and batch
// entry of the bias); a broadcast dimension counts once. A block adds up ds of its tile over the
// problems (batch, head, tile of queries, tile of keys) that share the tile; a warp owns 32 queries
// of it. Where queries or keys are broadcast, rows or columns are added up at the end. Several
// parts, or such sums, go to config-free bias_gradient_sum.cu by way of a.partials; else the block
// writes the result.
//
// Tiles of the next problem are loaded while one is computed: with two stages all of them, with one
// q and k as soon as S is there and dout and v while S is computed.
//
// Config: dtype; dim_qk, dim_vo (rounded up); tile_q, tile_kv, warps, stages, blocks; softcap,
// alibi, bias_type, mask, dropout. Shared memory: bias_gradient_shared.cuh.
#include "config.cuh"
#include "portable/bias_gradient_output.cuh"
#include "portable/bias_gradient_shared.cuh"
#include "ptx/memory.cuh"
#include "shared/dropout.cuh"
#include "shared/entry.cuh"
#include "shared/output.cuh"
#include "shared/pair_tile.cuh"
#include "shared/product.cuh"
#include "shared/score.cuh"
#include "shared/sizes.cuh"
#include "shared/tile.cuh"

namespace {

using namespace shared;

constexpr int kDimQk = config::dim_qk;
constexpr int kDimVo = config::dim_vo;
constexpr int kRows = kTileQ / kWarps;
constexpr int kBlocksM = kRows / 16;
constexpr int kBlocksN = kTileKv / 8;
constexpr int kBiasBytes = ElementBytes(config::bias_type);
constexpr attn::device::BiasGradientShared kShared = attn::device::BiasGradientSharedOf(
    kTileQ, kTileKv, kStages, kDimQk, kDimVo, kBiasBytes, config::mask != 0);
static_assert(kTileQ * kTileKv * 4 <= kShared.bias && kRows <= 32);

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

// One problem that shares the tile: where it is, and one of the warp's rows, i0 + OwnRow(), which
// the lanes that need it get by shuffles. Each lane with all its rows, or with the Entry instead of
// b, of this visit and the next, would spill (docs/kernels/portable.md).
struct Visit {
  int b, head;
  int i0 = 0, j0 = 0;  // first query of the warp, first key
  KeyRange keys;
  float lse;  // in units of log2; infinite where nothing is seen
  float delta;
  bool cut;  // not all of the warp's rows see all keys
};

__device__ __forceinline__ int OwnRow() {
  return static_cast<int>(threadIdx.x) % kRows;
}
__device__ __forceinline__ float FromRow(float of_own_row, int row) {
  return __shfl_sync(~0u, of_own_row, row);
}
__device__ __forceinline__ KeyRange FromRow(const KeyRange& of_own_row, int row) {
  return {__shfl_sync(~0u, of_own_row.begin, row), __shfl_sync(~0u, of_own_row.end, row)};
}

__device__ __forceinline__ void LoadRow(const Arguments& a, Visit& visit) {
  const Entry entry = EntryOf(a, visit.b);
  const long long first_row = a.packed_q != 0 ? entry.first_q : 1ll * entry.b * a.max_len_q;
  const int i = visit.i0 + OwnRow();
  visit.keys = {0, 0};
  visit.lse = kInfinity;  // p = 0
  visit.delta = 0.0f;
  if (i < entry.len_q) {
    const int2 range = reinterpret_cast<const int2*>(a.row_ranges)[first_row + i];
    const float2 stats = *reinterpret_cast<const float2*>(
        RowAddress(a.stats, entry.b, entry.first_q + i, visit.head));
    visit.keys = {range.x, range.y};
    visit.lse = stats.x;
    visit.delta = stats.y;
  }
}

// Scores less lse from raw products, in s.
template <bool in_series>
__device__ __forceinline__ void ScoreTile(const Arguments& a, const Visit& visit,
                                          unsigned bias_tile, unsigned mask_tile, Scores& s) {
  const ScoreScale scale = ScoreScaleOf(a, visit.b, visit.head);
  const float first = static_cast<float>(visit.i0 + EntryOf(a, visit.b).diag - visit.j0);
#pragma unroll
  for (int m = 0; m < kBlocksM; ++m)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = RowOf(m, r);
      const float lse = FromRow(visit.lse, row);
      const float from = first + static_cast<float>(row - ColumnOf(0));
#pragma unroll
      for (int n = 0; n < kBlocksN; ++n) {
        const float2 bias = BiasTile::Floats<config::bias_type>(bias_tile, row, ColumnOf(n));
        unsigned mask = 0x0101;
        if constexpr (config::mask != 0) mask = MaskTile::Bytes(mask_tile, row, ColumnOf(n));
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& element = s[m][n][2 * r + e];
          float slope;
          element = Score<in_series>(a, scale, element, from - (8 * n + e),
                                     e == 0 ? bias.x : bias.y, -lse, slope);
          if ((mask & (e == 0 ? 0xffu : 0xff00u)) == 0) element = -kInfinity;
        }
      }
    }
}

// Hides what is outside the keys that each row sees.
__device__ __forceinline__ void HideByRange(const Visit& visit, Scores& s) {
#pragma unroll
  for (int m = 0; m < kBlocksM; ++m)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const KeyRange keys = FromRow(visit.keys, RowOf(m, r));
      const unsigned width = static_cast<unsigned>(keys.end - keys.begin);
      const int from = visit.j0 + ColumnOf(0) - keys.begin;
#pragma unroll
      for (int n = 0; n < kBlocksN; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          if (static_cast<unsigned>(from + 8 * n + e) >= width) s[m][n][2 * r + e] = -kInfinity;
        }
    }
}

// ds of the tile, added to `sums`.
__device__ __forceinline__ void AddGradient(const Arguments& a, const Visit& visit, const Scores& s,
                                            const Scores& dp, Scores& sums) {
  Dropout dropout{};
  if constexpr (config::dropout != 0) dropout = DropoutOf(a, visit.b, visit.head);
#pragma unroll
  for (int m = 0; m < kBlocksM; ++m) {
    const float deltas[2] = {FromRow(visit.delta, RowOf(m, 0)), FromRow(visit.delta, RowOf(m, 1))};
#pragma unroll
    for (int n = 0; n < kBlocksN; n += 4) {
      Draws draws[2];
      if constexpr (config::dropout != 0) {
        Draw(dropout, visit.i0 + 16 * m, visit.j0 + 8 * n, draws[0], draws[1]);
      }
#pragma unroll
      for (int c = 0; c < 4; ++c)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float delta = deltas[e / 2];
          float gradient = dp[m][n + c][e];
          if constexpr (config::dropout != 0) {
            const unsigned keeps = Keeps<false>(dropout, draws[c / 2], c % 2, e / 2);
            gradient = fmaf(gradient, KeepsOne(keeps, e % 2) * a.keep_scale, -delta);
          } else {
            gradient -= delta;
          }
          sums[m][n + c][e] = fmaf(ptx::Exp2(s[m][n + c][e]), gradient, sums[m][n + c][e]);
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

  // The next place, keys counting fastest, and how many there are with it.
  const long long begin = visits * part / a.splits;
  long long left = visits * (part + 1) / a.splits - begin;
  int at_kv = static_cast<int>(begin % num_kv);
  int at_q = static_cast<int>(begin / num_kv % num_q);
  int at_h = static_cast<int>(begin / num_kv / num_q % num_h);
  int at_b = static_cast<int>(begin / num_kv / num_q / num_h);
  // Begins to load the next visit, whatever is seen there; of none, nothing is.
  const auto begin_load = [&](Visit& visit) {
    visit.keys = {0, 0};
    if (left <= 0) return;
    visit.b = b_place + at_b;
    visit.head = h_place + at_h;
    visit.i0 = (q_place + at_q) * kTileQ + warp * kRows;
    visit.j0 = (kv_place + at_kv) * kTileKv;
    LoadRow(a, visit);
    if (++at_kv == num_kv) {
      at_kv = 0;
      if (++at_q == num_q) {
        at_q = 0;
        if (++at_h == num_h) {
          at_h = 0;
          ++at_b;
        }
      }
    }
  };
  // From the one whose load has begun, the next visit where something is seen; false where there is
  // none. Also: all threads are done with what they read of shared memory before.
  const auto find = [&](Visit& visit) {
    const auto is_seen = [&] {
      return __syncthreads_or(visit.keys.begin < visit.j0 + kTileKv && visit.keys.end > visit.j0) !=
             0;
    };
    bool found = is_seen();
    while (!found && --left > 0) {
      begin_load(visit);
      found = is_seen();
    }
    --left;
    const bool cut = visit.keys.begin > visit.j0 || visit.keys.end < visit.j0 + kTileKv;
    visit.cut = __ballot_sync(~0u, cut) != 0;
    return found;
  };
  constexpr int kQBytes = kTileQ * kDimQk * 2;
  constexpr int kDoutBytes = kTileQ * kDimVo * 2;
  constexpr int kKBytes = kTileKv * kDimQk * 2;
  constexpr int kVBytes = kTileKv * kDimVo * 2;
  const auto fetch_qk = [&](const Visit& visit, int stage) {
    const Entry entry = EntryOf(a, visit.b);
    const int q0 = visit.i0 - warp * kRows;
    TileLoader<kDimQk, kTileQ, kThreads, kDtype>(
        a.q, a.dim_qk, RowAddress(a.q, entry.b, entry.first_q + q0, visit.head))
        .Load(base + kShared.q + static_cast<unsigned>(stage * kQBytes), 0, entry.len_q - q0);
    TileLoader<kDimQk, kTileKv, kThreads, kDtype>(
        a.k, a.dim_qk, RowAddress(a.k, entry.b, entry.first_kv + visit.j0, visit.head / a.group))
        .Load(base + kShared.k + static_cast<unsigned>(stage * kKBytes), 0,
              entry.len_kv - visit.j0);
  };
  const auto fetch_dout_v = [&](const Visit& visit, int stage) {
    const Entry entry = EntryOf(a, visit.b);
    const int q0 = visit.i0 - warp * kRows;
    TileLoader<kDimVo, kTileQ, kThreads, kDtype>(
        a.dout, a.dim_vo, RowAddress(a.dout, entry.b, entry.first_q + q0, visit.head))
        .Load(base + kShared.dout + static_cast<unsigned>(stage * kDoutBytes), 0, entry.len_q - q0);
    TileLoader<kDimVo, kTileKv, kThreads, kDtype>(
        a.v, a.dim_vo, RowAddress(a.v, entry.b, entry.first_kv + visit.j0, visit.head / a.group))
        .Load(base + kShared.v + static_cast<unsigned>(stage * kVBytes), 0,
              entry.len_kv - visit.j0);
  };
  const unsigned bias_tile =
      base + kShared.bias + static_cast<unsigned>(warp * kRows * BiasTile::kRowBytes);
  const unsigned mask_tile = base + kShared.mask + static_cast<unsigned>(warp * kRows * kTileKv);
  const char* bias_there = nullptr;  // a bias that is broadcast is loaded once
  const auto fetch_pairs = [&](const Visit& visit) {
    const Entry entry = EntryOf(a, visit.b);
    const char* bias = PairAddress(a.bias, entry.b, visit.head, visit.i0, visit.j0);
    const bool whole = visit.i0 + kRows <= entry.len_q && visit.j0 + kTileKv <= entry.len_kv;
    if (!whole || bias != bias_there) {
      BiasTile::Load(bias_tile, a.bias, bias, entry.len_q - visit.i0, entry.len_kv - visit.j0);
    }
    bias_there = whole ? bias : nullptr;
    if constexpr (config::mask != 0) {
      MaskTile::Load(mask_tile, a.mask,
                     PairAddress(a.mask, entry.b, visit.head, visit.i0, visit.j0),
                     entry.len_q - visit.i0, entry.len_kv - visit.j0);
    }
  };

  Scores sums{};
  Visit visit;
  begin_load(visit);
  bool found = find(visit);
  if (found) {
    fetch_qk(visit, 0);
    fetch_pairs(visit);
    if constexpr (kStages > 1) fetch_dout_v(visit, 0);
  }
  ptx::CopyCommit();
  for (int stage = 0; found; stage = (stage + 1) % kStages) {
    Visit next;
    bool found_next = false;
    Scores s;
    Scores dp;
    const unsigned rows_qk = static_cast<unsigned>(stage * kQBytes + warp * kRows * kDimQk * 2);
    const unsigned rows_vo = static_cast<unsigned>(stage * kDoutBytes + warp * kRows * kDimVo * 2);
    const auto multiply_qk = [&] {
      MultiplyRows<kDimQk>(base + kShared.q + rows_qk,
                           base + kShared.k + static_cast<unsigned>(stage * kKBytes), s);
    };
    const auto multiply_dout_v = [&] {
      MultiplyRows<kDimVo>(base + kShared.dout + rows_vo,
                           base + kShared.v + static_cast<unsigned>(stage * kVBytes), dp);
    };
    ptx::CopyWait<0>();
    begin_load(next);
    if constexpr (kStages > 1) {
      found_next = find(next);
      if (found_next) {
        fetch_qk(next, stage ^ 1);
        fetch_dout_v(next, stage ^ 1);
      }
      multiply_qk();
    } else {
      __syncthreads();
      fetch_dout_v(visit, 0);
      ptx::CopyCommit();
      multiply_qk();
      ptx::CopyWait<0>();
      found_next = find(next);
      if (found_next) fetch_qk(next, 0);
    }
    if (IsInSeries(a, s)) {
      ScoreTile<true>(a, visit, bias_tile, mask_tile, s);
    } else {
      ScoreTile<false>(a, visit, bias_tile, mask_tile, s);
    }
    if (visit.cut) HideByRange(visit, s);
    __syncwarp();  // all lanes have read the pairs
    if (found_next) fetch_pairs(next);
    ptx::CopyCommit();
    multiply_dout_v();
    AddGradient(a, visit, s, dp, sums);
    visit = next;
    found = found_next;
  }
  ptx::CopyWait<0>();
  __syncthreads();  // all have read the tiles, whose place sums take

  // Sums of rows or columns, in a fixed order: lanes, then warps through shared memory.
  auto* column_sums = reinterpret_cast<float*>(memory);  // [warps][kTileKv]
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

  const long long len_q = full_q ? a.max_len_q : 1;
  const long long len_kv = full_kv ? a.max_len_kv : 1;
  const long long q0 = 1ll * q_place * kTileQ;
  const long long j0 = 1ll * kv_place * kTileKv;
  Target to;
  if (a.partials != nullptr) {
    // [part][batch][head][query][key] of the bias's own shape.
    const long long plane =
        (1ll * part * (full_b ? a.batch : 1) + b_place) * (full_h ? a.heads_q : 1) + h_place;
    to = {reinterpret_cast<char*>(a.partials + (plane * len_q + q0) * len_kv + j0), len_kv * 4, 4,
          config::f32, len_kv % 4 == 0};
  } else {
    to = {PairAddress(a.dbias, b_place, h_place, q0, j0), a.dbias.stride_q, a.dbias.stride_kv,
          a.dbias.type, a.dbias.vector != 0};
  }
  const int rows = static_cast<int>(min(len_q - q0, static_cast<long long>(kTileQ)));
  const int columns = static_cast<int>(min(len_kv - j0, static_cast<long long>(kTileKv)));
  if (full_q && full_kv) {
    StoreTile<kThreads, kDtype>(a, to, rows, columns, sums, base);
  } else if (full_q) {
#pragma unroll
    for (int m = 0; m < kBlocksM; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = warp * kRows + RowOf(m, r);
        if (threadIdx.x % 4 == 0 && row < rows) StoreSum(a, to, row, 0, sums[m][0][2 * r]);
      }
  } else if (threadIdx.x < 4) {
#pragma unroll
    for (int n = 0; n < kBlocksN; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        if (ColumnOf(n) + e < columns) StoreSum(a, to, 0, ColumnOf(n) + e, sums[0][n][e]);
      }
  }
}
