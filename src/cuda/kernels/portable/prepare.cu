// Before the backward: what it needs of each query, in the workspace (host/workspace.hpp).
//   stats       {lse in units of log2, delta}, delta = dot(dout, o) - dlse where the caller gave
//               none; {inf, 0} for rows that see nothing or are past the length: their p and ds
//               are 0, whatever their dlse is
//   row_ranges  the keys that a row sees, {0, 0} past the length; the same for all heads
//   q_ranges    the TileRange of each tile of the backward's tile_q queries
//   zeros       in dq_sum and the counters of turns
//
// Grid: a block for each (tile of queries, query head, batch entry), the tile counting fastest; one
// at least. It is bound by memory: a row is shared by as many lanes as have 16 bytes of it, 4 rows
// of a lane under way at once. Each block zeroes its share of the zeros.
// Config: tile_q.
#include "config.cuh"
#include "shared/entry.cuh"
#include "shared/row_chunk.cuh"

namespace {

using namespace shared;

constexpr int kTileQ = config::tile_q;
constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
// Rows of a lane under way at once; one where they aren't loaded 16 bytes at a time, whose code is
// long to compile.
template <bool kVector>
constexpr int kAtOnce = kVector ? 4 : 1;
constexpr int kBlocks = 6;  // of an SM: 9 to 16 % quicker than with the registers of 4; 8 spill
constexpr float kLog2E = 1.4426950408889634f;
constexpr float kInfinity = __builtin_bit_cast(float, 0x7f800000);

__device__ __forceinline__ float& FloatAt(const Rows& rows, const Entry& entry, int i, int head) {
  return *reinterpret_cast<float*>(RowAddress(rows, entry.b, entry.first_q + i, head));
}

__device__ __forceinline__ void Zero(const Arguments& a) {
  const long long share = (a.zeros_bytes / 16 + gridDim.x - 1) / gridDim.x;
  const long long begin = blockIdx.x * share;
  const long long end = min(begin + share, a.zeros_bytes / 16);
#pragma unroll 4
  for (long long n = begin + threadIdx.x; n < end; n += kThreads) {
    reinterpret_cast<float4*>(a.zeros)[n] = float4{};
  }
}

__device__ __forceinline__ void WriteRanges(const Arguments& a, const Entry& entry, int tile,
                                            int tiles) {
  __shared__ int joined[4 * kWarps];
  const long long first = a.packed_q != 0 ? entry.first_q : 1ll * entry.b * a.max_len_q;
  TileRange mine;
  for (int row = static_cast<int>(threadIdx.x); row < kTileQ; row += kThreads) {
    const int i = tile * kTileQ + row;
    if (i >= entry.rows_q) continue;
    KeyRange keys;
    if (i < entry.len_q) {
      keys = KeysOf(a, entry, i);
      Join(mine, keys);
    }
    reinterpret_cast<int2*>(a.row_ranges)[first + i] = {keys.begin, keys.end};
  }
  const TileRange range = JoinBlock<kWarps>(JoinWarp(mine), joined);
  if (threadIdx.x == 0) {
    reinterpret_cast<int4*>(a.q_ranges)[1ll * entry.b * tiles + tile] = {
        range.first, range.last, range.all_first, range.all_last};
  }
}

// dot(dout, o) of rows i, i + rows, ...: this lane's part, of its 8 columns. Outside of the entry
// nothing is read.
template <bool kVector>
__device__ __forceinline__ void Dots(const Arguments& a, const Entry& entry, int head, int i,
                                     int rows, int column, float (&dots)[kAtOnce<kVector>]) {
  constexpr int kRows = kAtOnce<kVector>;
  RawChunk raw_o[kRows];
  RawChunk raw_dout[kRows];
#pragma unroll
  for (int n = 0; n < kRows && kVector; ++n) {
    const long long row = entry.first_q + i + n * rows;
    const int there = i + n * rows < entry.len_q ? a.dim_vo : 0;
    raw_o[n] = LoadRaw(a.o, RowAddress(a.o, entry.b, row, head), column, there);
    raw_dout[n] = LoadRaw(a.dout, RowAddress(a.dout, entry.b, row, head), column, there);
  }
#pragma unroll
  for (int n = 0; n < kRows; ++n) {
    float o[8];
    float dout[8];
    if constexpr (kVector) {
      ToFloats(raw_o[n], a.o.type, o);
      ToFloats(raw_dout[n], a.dout.type, dout);
    } else {
      const long long row = entry.first_q + i + n * rows;
      const int there = i + n * rows < entry.len_q ? a.dim_vo : 0;
      LoadChunk(a.o, RowAddress(a.o, entry.b, row, head), column, there, o);
      LoadChunk(a.dout, RowAddress(a.dout, entry.b, row, head), column, there, dout);
    }
    dots[n] = 0.0f;
#pragma unroll
    for (int e = 0; e < 8; ++e) dots[n] = fmaf(o[e], dout[e], dots[n]);
  }
}

template <bool kVector>
__device__ __forceinline__ void WriteStats(const Arguments& a, const Entry& entry, int head,
                                           int i0) {
  const int lanes = LanesOfRow(a.dim_vo);
  const int rows = kThreads / lanes;  // of a step of the block
  const int place = static_cast<int>(threadIdx.x) / lanes;
  const int column = static_cast<int>(threadIdx.x) % lanes * 8;
  const int end = min(kTileQ, entry.rows_q - i0);
  for (int first = place; first - place < end; first += kAtOnce<kVector> * rows) {
    float delta[kAtOnce<kVector>] = {};
    if (a.delta.base == nullptr) {
      Dots<kVector>(a, entry, head, i0 + first, rows, column, delta);
      for (int distance = lanes / 2; distance > 0; distance /= 2) {
#pragma unroll
        for (float& sum : delta) sum += __shfl_xor_sync(~0u, sum, distance);
      }
    }
    if (column != 0) continue;
#pragma unroll
    for (int n = 0; n < kAtOnce<kVector>; ++n) {
      const int i = i0 + first + n * rows;
      if (first + n * rows >= end) continue;
      float2 stats{kInfinity, 0.0f};
      const float lse = i < entry.len_q ? FloatAt(a.lse, entry, i, head) : -kInfinity;
      if (lse != -kInfinity) {
        stats.x = lse * kLog2E;
        stats.y = delta[n];
        if (a.delta.base != nullptr) stats.y = FloatAt(a.delta, entry, i, head);
        if (a.dlse.base != nullptr && a.delta.base == nullptr) {
          stats.y -= FloatAt(a.dlse, entry, i, head);
        }
      }
      *reinterpret_cast<float2*>(RowAddress(a.stats, entry.b, entry.first_q + i, head)) = stats;
    }
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads, kBlocks)
    attn_prepare(const __grid_constant__ Arguments a) {
  Zero(a);
  const int tiles = (a.max_len_q + kTileQ - 1) / kTileQ;
  if (tiles == 0 || a.batch == 0) return;
  const int tile = static_cast<int>(blockIdx.x % static_cast<unsigned>(tiles));
  const unsigned heads = blockIdx.x / static_cast<unsigned>(tiles);
  const int head = static_cast<int>(heads % static_cast<unsigned>(a.heads_q));
  const Entry entry = EntryOf(a, static_cast<int>(heads / static_cast<unsigned>(a.heads_q)));
  if (head == 0) WriteRanges(a, entry, tile, tiles);
  if (a.o.vector != 0 && a.dout.vector != 0) {
    WriteStats<true>(a, entry, head, tile * kTileQ);
  } else {
    WriteStats<false>(a, entry, head, tile * kTileQ);
  }
}
