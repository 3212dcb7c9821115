// Which tiles of queries a persistent block computes, and which keys they see.
//
// kStatic: block b takes tiles b, b + blocks, ...; rows of a head are consecutive.
// kPaired: the unit is two tiles: row tile r of one head and row tile q_tiles - 1 - r of the next
//   head, so that every unit of a causal problem has the same work, whatever the number of row
//   tiles.
// kDynamic: the producer takes the next tile from a counter in global memory; the longest rows of
//   the heads that share L2 come first.
#pragma once
#include "shared/sequence.cuh"
#include "sm90/forward_barriers.cuh"

namespace sm90 {

using shared::Sequence;
using shared::TileRange;

// A tile of queries. `keys` and `kv_end` say which tiles of keys the block visits: from kv_end - 1
// down to kv_end - kv_count.
struct QueryTile {
  Sequence seq;
  int head = 0;
  int row = 0;   // first query
  int part = 0;  // of O's columns
  bool has_rows = false;
  TileRange keys;
  int kv_end = 0;
  int kv_count = 0;
};

__device__ __forceinline__ int ClampKey(long long key, int len_kv) {
  return static_cast<int>(min(max(key, 0ll), static_cast<long long>(len_kv)));
}
// Bounds of query i from causal and windows alone; both grow with i.
__device__ __forceinline__ int KeyBegin(const ForwardParams& p, const Sequence& seq, int i) {
  if constexpr (config::left_bound == 0) return 0;
  return ClampKey(i + seq.diag - p.common.window_left, seq.len_kv);
}
__device__ __forceinline__ int KeyEnd(const ForwardParams& p, const Sequence& seq, int i) {
  if constexpr (config::right_bound == 0) return seq.len_kv;
  return ClampKey(i + seq.diag + p.common.window_right + 1, seq.len_kv);
}

// The key ranges of queries [row, row + rows), without kv_begin and kv_end.
__device__ __forceinline__ TileRange RangeOfRows(const ForwardParams& p, const Sequence& seq,
                                                 int row, int rows) {
  const int last = min(row + rows, seq.len_q) - 1;
  if (last < row) return {};
  return {KeyBegin(p, seq, row), KeyEnd(p, seq, last), KeyBegin(p, seq, last), KeyEnd(p, seq, row)};
}

struct TileScheduler {
  const ForwardParams& p;

  // The t-th tile of this block for the static schedules; num_tiles or more: nothing is left.
  __device__ __forceinline__ int StaticTile(int t) const {
    const int block = static_cast<int>(blockIdx.x);
    const int blocks = static_cast<int>(gridDim.x);
    if constexpr (config::schedule == kPaired) return 2 * (block + t / 2 * blocks) + t % 2;
    return block + t * blocks;
  }
  // Every block takes tiles until it sees an index past the end: num_tiles takes in all, after
  // which the counter is 0 again.
  __device__ __forceinline__ int TakeTile() const {
    return static_cast<int>(gridDim.x +
                            atomicInc(p.next_tile, static_cast<unsigned>(p.num_tiles - 1)));
  }
  // Tiles come in twos if paired: of an odd number of heads the last has no partner.
  __device__ __forceinline__ int End() const {
    if constexpr (config::schedule == kPaired) {
      return (p.num_tiles / p.q_tiles + 1) / 2 * 2 * p.q_tiles;
    }
    return p.num_tiles;
  }

  // The sequence of `index` in batch * heads_q, and its head. Sequences that share a bias or mask
  // are scheduled consecutively, so that all but the first hit in L2.
  __device__ __forceinline__ int SplitHead(int index, int& head) const {
    if constexpr (kBiasBytes > 0 || config::mask != 0) {
      if ((kBiasBytes > 0 ? p.common.bias : p.common.mask).stride_batch == 0) {
        const int batch = p.num_tiles / (p.q_tiles * p.common.heads_q);
        head = index / batch;
        return index - head * batch;
      }
    }
    const int seq_idx = index / p.common.heads_q;
    head = index - seq_idx * p.common.heads_q;
    return seq_idx;
  }

  // False if the tile has no rows. `keys` and the tiles of keys are not set.
  __device__ __forceinline__ bool Locate(int index, QueryTile& tile) const {
    int row_tile;
    int head;  // of batch * heads_q, and each part is a head of its own
    if constexpr (config::schedule == kPaired) {
      const int pair = index / 2 / p.q_tiles;
      row_tile = index / 2 - pair * p.q_tiles;
      head = 2 * pair + index % 2;
      if (index % 2 == 0) row_tile = p.q_tiles - 1 - row_tile;
      if (head >= p.num_tiles / p.q_tiles) return false;
    } else if constexpr (config::schedule == kDynamic) {
      const int heads = p.num_tiles / p.q_tiles;
      const int section = index / (p.heads_at_once * p.q_tiles);
      const int rest = index - section * p.heads_at_once * p.q_tiles;
      const int size = min(p.heads_at_once, heads - section * p.heads_at_once);
      row_tile = p.q_tiles - 1 - rest / size;
      head = section * p.heads_at_once + rest % size;
    } else {
      head = index / p.q_tiles;
      row_tile = index - head * p.q_tiles;
    }
    if constexpr (kParts > 1) {
      tile.part = head % kParts;
      head /= kParts;
    }
    const int seq_idx = SplitHead(head, tile.head);
    tile.row = row_tile * kTileQ;
    if constexpr (config::lengths == kNoLengths) {
      const int len_q = p.common.max_len_q;
      const int len_kv = p.common.max_len_kv;
      tile.seq = {
          seq_idx, len_q, len_kv, len_q,
          len_kv,  0,     0,      p.common.bottom_right != 0 ? len_kv - len_q : p.common.diag};
    } else {
      tile.seq = shared::SequenceOf(p.common, seq_idx);
    }
    return tile.row < tile.seq.rows_q;
  }

  __device__ __forceinline__ static void SetKeys(const TileRange& keys, QueryTile& tile) {
    tile.keys = keys;
    const bool any = keys.any_begin < keys.any_end;
    tile.kv_end = any ? (keys.any_end + kTileKv - 1) / kTileKv : 0;
    tile.kv_count = any ? tile.kv_end - keys.any_begin / kTileKv : 0;
  }

  // With kv_begin or kv_end, by a warp: every row's range is read.
  __device__ __forceinline__ TileRange ReadRange(const QueryTile& tile) const {
    TileRange lane_range;
    const int end = min(tile.row + kTileQ, tile.seq.len_q);
    for (int i = tile.row + static_cast<int>(threadIdx.x) % 32; i < end; i += 32) {
      shared::Include(lane_range, shared::VisibleKeys(p.common, tile.seq, i));
    }
    return shared::ReduceWarp(lane_range);
  }
};

}  // namespace sm90
