// Schedules tiles of queries on persistent blocks, and computes the keys that they see.
//
// kStatic: block b processes tiles b, b + blocks, ...; the tiles of a head are consecutive.
// kPaired: the unit is two tiles, row tile q_tiles - 1 - r of one head and row tile r of the next,
// so that every unit of a causal problem has the same work, whatever the number of row tiles.
// kDynamic: the producer takes the next tile from a counter in global memory. Among heads that
// share L2, the longest rows come first.
#pragma once
#include "shared/sequence.cuh"
#include "sm90/forward_barriers.cuh"

namespace sm90 {

using shared::Sequence;
using shared::TileRange;

struct QueryTile;

// The tiles of keys that a warpgroup computes: of those that the block visits, from the last key
// down, it leaves out the first `skip_first` and all after the next `count`. The first
// `partial_first` and the last `partial_last` of the `count` hide keys from some rows.
struct WarpgroupTiles {
  int skip_first = 0;
  int count = 0;
  int partial_first = 0;
  int partial_last = 0;

  WarpgroupTiles() = default;
  // `keys`: the ranges of the warpgroup's rows.
  __device__ __forceinline__ WarpgroupTiles(const QueryTile& tile, const TileRange& keys);
};

// A tile of queries: kHeadRows queries, from `row` on, of each of kTileHeads heads, from `head` on.
// The block visits the tiles of keys from kv_end - 1 down to kv_end - kv_count.
struct QueryTile {
  Sequence seq;
  int head = 0;
  int row = 0;
  int part = 0;  // of O's columns
  // Query i sees keys from i + begin_shift to before i + end_shift, by causal and windows alone.
  int begin_shift = 0;
  int end_shift = 0;
  int kv_end = 0;
  int kv_count = 0;
  WarpgroupTiles own;  // of this thread's warpgroup
};

__device__ __forceinline__ WarpgroupTiles::WarpgroupTiles(const QueryTile& tile,
                                                          const TileRange& keys) {
  if (tile.kv_count == 0 || keys.any_begin >= keys.any_end) {
    skip_first = tile.kv_count;
    return;
  }
  const int end = (keys.any_end + kTileKv - 1) / kTileKv;
  count = end - keys.any_begin / kTileKv;
  skip_first = tile.kv_end - end;
  // Tiles [all_first, all_end) are full.
  const int all_first = (keys.all_begin + kTileKv - 1) / kTileKv;
  const int all_end = max(keys.all_end / kTileKv, all_first);
  partial_first = min(max(end - all_end, 0), count);
  partial_last = kLeftBound ? max(count - max(end - all_first, partial_first), 0) : 0;
}

// Lengths are below 2^30. A larger shift has the same effect as one of 2^30, which fits in 32 bits
// when a query is added.
__device__ __forceinline__ int ClampShift(long long shift) {
  return static_cast<int>(min(max(shift, -(1ll << 30)), 1ll << 30));
}
// Bounds of query i from causal and windows alone; both grow with i.
__device__ __forceinline__ int KeyBegin(const QueryTile& tile, int i) {
  if constexpr (config::left_bound == 0) return 0;
  return min(max(i + tile.begin_shift, 0), tile.seq.len_kv);
}
__device__ __forceinline__ int KeyEnd(const QueryTile& tile, int i) {
  if constexpr (config::right_bound == 0) return tile.seq.len_kv;
  return min(max(i + tile.end_shift, 0), tile.seq.len_kv);
}

// The key ranges of queries [row, row + rows), without kv_begin and kv_end.
__device__ __forceinline__ TileRange RangeOfRows(const QueryTile& tile, int row, int rows) {
  const int last = min(row + rows, tile.seq.len_q) - 1;
  if (last < row) return {};
  return {KeyBegin(tile, row), KeyEnd(tile, last), KeyBegin(tile, last), KeyEnd(tile, row)};
}

// The same for the rows of a tile, and for those of warpgroup w.
__device__ __forceinline__ TileRange RangeOfTile(const QueryTile& tile) {
  return RangeOfRows(tile, tile.row, kHeadRows);
}
__device__ __forceinline__ TileRange RangeOfGroup(const QueryTile& tile, int w) {
  if constexpr (kTileHeads > 1) {
    return RangeOfRows(tile, tile.row + 64 * w % kHeadRows, kGroupHeadRows);
  }
  return RangeOfRows(tile, tile.row + 64 * w, 64);
}
// Sets `head` and `row` for a warp's 16 rows, which begin at 64 w + 16 warp: so that query
// row + 64 w + 16 warp of this head is the first.
__device__ __forceinline__ void SelectHead(int w, int warp, QueryTile& tile) {
  if constexpr (kTileHeads > 1) {
    const int n = (64 * w + 16 * warp) / kHeadRows;
    tile.head += n;
    tile.row -= n * kHeadRows;
  }
}

struct TileScheduler {
  const ForwardParams& p;

  // Static schedules: the t-th tile of this block. num_tiles or more means that none is left.
  __device__ __forceinline__ int StaticTile(int t) const {
    const int block = static_cast<int>(blockIdx.x);
    const int blocks = static_cast<int>(gridDim.x);
    if constexpr (config::schedule == kPaired) return 2 * (block + t / 2 * blocks) + t % 2;
    return block + t * blocks;
  }
  // Takes the next tile. Every block takes tiles until it gets an index past the end, num_tiles in
  // total, after which the counter is 0 again. Without a counter, no block has a second tile.
  __device__ __forceinline__ int TakeTile() const {
    if (p.next_tile == nullptr) return p.num_tiles;
    return static_cast<int>(gridDim.x +
                            atomicInc(p.next_tile, static_cast<unsigned>(p.num_tiles - 1)));
  }
  // kPaired: tiles come in pairs. With an odd number of heads, the last head has no partner.
  __device__ __forceinline__ int End() const {
    if constexpr (config::schedule == kPaired) {
      return (p.num_tiles / p.q_tiles + 1) / 2 * 2 * p.q_tiles;
    }
    return p.num_tiles;
  }

  // Splits `index` in batch * heads_q / kTileHeads into sequence and first head. Sequences that
  // share a bias or mask are scheduled consecutively, so all but the first hit in L2.
  __device__ __forceinline__ int SplitHead(int index, int& head) const {
    if constexpr (kBiasBytes > 0 || config::mask != 0) {
      if ((kBiasBytes > 0 ? p.common.bias : p.common.mask).stride_batch == 0) {
        const int batch = p.num_tiles / (p.q_tiles * p.common.heads_q);
        head = index / batch;
        return index - head * batch;
      }
    }
    const int groups = p.common.heads_q / kTileHeads;
    const int seq_idx = index / groups;
    head = (index - seq_idx * groups) * kTileHeads;
    return seq_idx;
  }

  __device__ __forceinline__ Sequence SequenceAt(int seq_idx) const {
    if constexpr (config::lengths != kNoLengths) return shared::SequenceOf(p.common, seq_idx);
    const int len_q = p.common.max_len_q;
    const int len_kv = p.common.max_len_kv;
    return {seq_idx, len_q, len_kv, len_q,
            len_kv,  0,     0,      p.common.bottom_right != 0 ? len_kv - len_q : p.common.diag};
  }

  // False if the tile has no rows. The tiles of keys are not set.
  __device__ __forceinline__ bool Locate(int index, QueryTile& tile) const {
    int row_tile;
    int head;  // of batch * heads_q / kTileHeads, and each part is a head of its own
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
    tile.row = row_tile * kHeadRows;
    tile.seq = SequenceAt(seq_idx);
    tile.begin_shift = ClampShift(tile.seq.diag - p.common.window_left);
    tile.end_shift = ClampShift(tile.seq.diag + p.common.window_right + 1);
    return tile.row < tile.seq.rows_q;
  }

  // `keys`: the ranges of the block's rows.
  __device__ __forceinline__ static void SetKeys(const TileRange& keys, QueryTile& tile) {
    const bool any = keys.any_begin < keys.any_end;
    tile.kv_end = any ? (keys.any_end + kTileKv - 1) / kTileKv : 0;
    tile.kv_count = any ? tile.kv_end - keys.any_begin / kTileKv : 0;
  }

  // With kv_begin or kv_end, by a warp: the ranges of 64 rows from `row` on are read.
  __device__ __forceinline__ TileRange ReadRange(const QueryTile& tile, int row) const {
    TileRange lane_range;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const int i = row + 32 * n + static_cast<int>(threadIdx.x) % 32;
      if (i < tile.seq.len_q) {
        shared::Include(lane_range, shared::VisibleKeys(p.common, tile.seq, i));
      }
    }
    return shared::ReduceWarp(lane_range);
  }
};

// A tile of queries as the producer publishes it in shared memory, so that the warps that read it
// need not locate it themselves: two groups of four words for all, then four words for each
// warpgroup.
struct TileSlot {
  unsigned at;  // shared memory

  // By a warp: lane w stores the tiles of keys of warpgroup w, which are `own` of its tile.
  __device__ __forceinline__ void Store(const QueryTile& tile) const {
    const unsigned lane = threadIdx.x % 32;
    if (lane < kWarpgroups) {
      StoreWords(2 + lane, tile.own.skip_first, tile.own.count, tile.own.partial_first,
                 tile.own.partial_last);
    }
    if (lane == 0) {
      StoreWords(0, tile.row, tile.seq.idx, tile.head | tile.part << 30, tile.kv_count);
      StoreWords(1, tile.kv_end, tile.begin_shift, tile.end_shift, 0);
    }
  }
  // Nothing is left.
  __device__ __forceinline__ void StoreEnd() const {
    if (threadIdx.x % 32 == 0) StoreWords(0, -1, 0, 0, 0);
  }
  // Which tile it is; of `seq` only the index.
  __device__ __forceinline__ void LoadPlace(QueryTile& tile) const {
    const int4 place = LoadWords(0);
    tile.row = place.x;
    tile.seq.idx = place.y;
    tile.head = kParts > 1 ? place.z & 0x3fffffff : place.z;
    tile.part = kParts > 1 ? place.z >> 30 : 0;
    tile.kv_count = place.w;
  }
  // The tile with its warpgroup's tiles of keys; of `seq` only the index. False: nothing is left.
  __device__ __forceinline__ bool Load(int warpgroup, QueryTile& tile) const {
    LoadPlace(tile);
    const int4 keys = LoadWords(1);
    const int4 own = LoadWords(2 + static_cast<unsigned>(warpgroup));
    tile.kv_end = keys.x;
    tile.begin_shift = keys.y;
    tile.end_shift = keys.z;
    tile.own.skip_first = own.x;
    tile.own.count = own.y;
    tile.own.partial_first = own.z;
    tile.own.partial_last = own.w;
    return tile.row >= 0;
  }

 private:
  __device__ __forceinline__ void StoreWords(unsigned group, int x, int y, int z, int w) const {
    ptx::StoreShared128(at + 16 * group, __int_as_float(x), __int_as_float(y), __int_as_float(z),
                        __int_as_float(w));
  }
  __device__ __forceinline__ int4 LoadWords(unsigned group) const {
    int words[4];
#pragma unroll
    for (unsigned n = 0; n < 4; ++n) {
      words[n] = static_cast<int>(ptx::LoadShared32(at + 16 * group + 4 * n));
    }
    return {words[0], words[1], words[2], words[3]};
  }
};

}  // namespace sm90
