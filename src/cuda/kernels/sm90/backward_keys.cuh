// The block's tile of keys and the tiles of queries that see it, for sm90/backward.cu and
// sm90/backward_wide.cu.
#pragma once
#include "ptx/memory.cuh"
#include "shared/one_tile.cuh"
#include "shared/sequence.cuh"
#include "sm90/backward_band.cuh"
#include "sm90/backward_common_config.cuh"

namespace sm90 {

// With kv_begin or kv_end: the tiles of queries that see some key of the block. A list of words in
// shared memory, {visited, partial} or {visited, partial, sole} for every 32 tiles, computed from
// q_ranges (passes/backward_preprocess.cu). A sole tile is visited by no other block of the head.
struct TileList {
  static constexpr int kStride = attn::device::sm90::BackwardVisitStride(kWritesSoleDq);
  unsigned at;

  // Called by all threads; a barrier of the block must follow. `all_rows`: tiles from this one on
  // are not complete.
  __device__ __forceinline__ void Fill(const int4* ranges, int num_tiles, int j0,
                                       int all_rows) const {
    const int num_threads = static_cast<int>(blockDim.x);
    for (int n = static_cast<int>(threadIdx.x); n < (num_tiles + 31) / 32 * 32; n += num_threads) {
      const int4 range = n < num_tiles ? ranges[n] : int4{};
      const bool sees = range.x < j0 + kTileKv && range.y > j0;
      const bool sees_all = range.z <= j0 && range.w >= j0 + kTileKv && n < all_rows;
      const unsigned visited = __ballot_sync(~0u, sees);
      const unsigned partial = __ballot_sync(~0u, !sees_all);
      if (n % 32 == 0) {
        ptx::StoreShared32(At(n, 0), visited);
        ptx::StoreShared32(At(n, 1), partial);
      }
      if constexpr (kWritesSoleDq) {
        const bool is_sole = attn::device::InOneTile(range.x, range.y, kTileKv);
        const unsigned sole = __ballot_sync(~0u, is_sole);
        if (n % 32 == 0) ptx::StoreShared32(At(n, 2), sole);
      }
    }
  }
  // Returns the first tile to visit at or after `from`, or num_tiles if there is none.
  __device__ __forceinline__ int Next(int from, int num_tiles) const {
    while (from < num_tiles) {
      const unsigned rest = ptx::LoadShared32(At(from, 0)) >> (from % 32);
      if (rest != 0) return from + __ffs(static_cast<int>(rest)) - 1;
      from = (from | 31) + 1;
    }
    return num_tiles;
  }
  __device__ __forceinline__ bool IsPartial(int tile) const { return Bit(tile, 1); }
  // Whether no other block of the head visits a tile that this block visits.
  __device__ __forceinline__ bool IsSole(int tile) const { return kWritesSoleDq && Bit(tile, 2); }

 private:
  // Address of the n-th word that has a bit of the tile.
  __device__ __forceinline__ unsigned At(int tile, int n) const {
    return at + static_cast<unsigned>(tile / 32 * kStride + 4 * n);
  }
  __device__ __forceinline__ bool Bit(int tile, int n) const {
    return (ptx::LoadShared32(At(tile, n)) >> (tile % 32) & 1) != 0;
  }
};

inline constexpr bool kMayReverse = config::left_bound == 0 && !kRowRanges;

// The block's tile of keys and its key head, counted over all sequences. The blocks of
// kv_heads_at_once heads are interleaved: the first tile of each head comes first. Under a causal
// mask the first tiles take longest, so no long block starts while the others end. Heads that
// remain at the end join the last group.
//
// In deterministic order under a causal mask, tiles of keys run from the last to the first, one
// head after the other, so the longest block of the last head would start last and run alone.
// Therefore the blocks of the last kv_heads_reversed heads run from the first tile of keys to the
// last, interleaved, and visit queries from the last to the first. Each still starts to add to dQ
// one step after the block that it waits for.
struct BlockPlace {
  unsigned tile;
  unsigned head;
  bool reversed;

  __device__ __forceinline__ BlockPlace(const BackwardParams& p, unsigned block) {
    const Arguments& a = p.common;
    const unsigned tiles = static_cast<unsigned>((a.max_len_kv + kTileKv - 1) / kTileKv);
    const unsigned heads =
        static_cast<unsigned>(a.heads_kv) * static_cast<unsigned>(a.batch) - p.kv_heads_reversed;
    reversed = kMayReverse && block >= heads * tiles;
    if (reversed) {
      tile = (block - heads * tiles) / p.kv_heads_reversed;
      head = heads + (block - heads * tiles) % p.kv_heads_reversed;
      return;
    }
    const unsigned at_once = static_cast<unsigned>(a.kv_heads_at_once);
    const unsigned last_group = heads / at_once - 1;
    const unsigned group = min(block / (at_once * tiles), last_group);
    const unsigned size = group == last_group ? heads - group * at_once : at_once;
    const unsigned rest = block - group * at_once * tiles;
    tile = rest / size;
    head = group * at_once + rest % size;
  }
};

struct KeyTile {
  Sequence seq;
  Band band;
  int head_kv;
  bool descends;   // visits tiles of queries from the last to the first: BlockPlace::reversed
  int j0;          // the first key
  int tile_begin;  // tiles of queries that see some key (row_ranges: see list)
  int tile_end;
  TileList list;
  int full_begin;  // with `lengths`: tiles from [full_begin, full_end) are full
  int full_end;

  // `deterministic`: tiles run from last to first, except for reversed heads, so that blocks wait
  // only for blocks that started before them. `block_seq`: the sequence with index SequenceIdx().
  // `visits`: shared memory of the list.
  __device__ __forceinline__ KeyTile(const BackwardParams& p, bool deterministic,
                                     const Sequence& block_seq, unsigned visits,
                                     unsigned block = blockIdx.x)
      : KeyTile(p.common, block_seq, deterministic, BlockPlace(p, block), visits) {}
  __device__ __forceinline__ static int SequenceIdx(const BackwardParams& p,
                                                    unsigned block = blockIdx.x) {
    const unsigned heads_kv = static_cast<unsigned>(p.common.heads_kv);
    return static_cast<int>(BlockPlace(p, block).head / heads_kv);
  }

  // With row_ranges: lists the tiles to visit. Called by all threads; a barrier of the block must
  // follow.
  __device__ __forceinline__ void List(const Arguments& a) const {
    list.Fill(QueryRanges(a), tile_end, j0, kLengths ? seq.len_q / kTileQ : tile_end);
  }
  // With row_ranges: the TileRange of each tile of queries of the sequence.
  __device__ __forceinline__ const int4* QueryRanges(const Arguments& a) const {
    const long long tiles = (a.max_len_q + kTileQ - 1) / kTileQ;
    return reinterpret_cast<const int4*>(a.q_ranges) + seq.idx * tiles;
  }

  // Whether the block visits the n-th tile of queries.
  __device__ __forceinline__ bool Visits(int n) const {
    if (n < tile_begin || n >= tile_end) return false;
    return !kRowRanges || list.Next(n, n + 1) == n;
  }
  // Whether every query of the tile from i0 exists and sees every key.
  __device__ __forceinline__ bool IsFull(int i0) const {
    if constexpr (kRowRanges) return !list.IsPartial(i0 / kTileQ);
    if constexpr (kLengths) return i0 >= full_begin && i0 < full_end;
    return j0 + kTileKv <= seq.len_kv && i0 >= j0 + kTileKv - 1 + band.low &&
           (config::left_bound == 0 || i0 + kTileQ - 1 <= j0 + band.high);
  }
  // The number of tiles after tile_begin at which the block begins. If a head has few blocks, they
  // begin at different tiles, so that they do not add to the same dQ at the same time: 4 % faster
  // with 512 keys, no gain with 2048. Causal blocks begin at different tiles anyway. In
  // deterministic order they must not rotate: a block could wait for one that is not running. If
  // the result is not 0, tile_begin is 0.
  __device__ __forceinline__ int Rotation(const Arguments& a) const {
    if (!kBeginsApart || a.dq_ordered != 0 || band.low != -Band::kLimit || NumTiles(a) > 8) {
      return 0;
    }
    return static_cast<int>(1ll * (j0 / kTileKv) * (tile_end - tile_begin) / NumTiles(a));
  }
  // For a tile of queries from i0 that the block visits: the number of later tiles of keys that
  // visit it.
  __device__ __forceinline__ int NumLaterVisitors(const Arguments& a, int i0) const {
    if constexpr (kRowRanges) return (QueryRanges(a)[i0 / kTileQ].y - 1) / kTileKv - j0 / kTileKv;
    const int last_query = min(i0 + kTileQ, seq.len_q) - 1;
    const int last_key = min(last_query - band.low, seq.len_kv - 1);
    return last_key / kTileKv - j0 / kTileKv;
  }
  // In deterministic order, for a tile of queries from i0 that the block visits: the number of
  // blocks that add to its dQ before this one.
  __device__ __forceinline__ int NumBefore(const Arguments& a, int i0) const {
    return kMayReverse && descends ? j0 / kTileKv : NumLaterVisitors(a, i0);
  }
  // For a tile of queries from i0 that the block visits: whether no earlier tile of keys visits it.
  // Only without row_ranges.
  __device__ __forceinline__ bool IsFirstVisitor(int i0) const {
    return max(i0 - band.high, 0) / kTileKv == j0 / kTileKv;
  }
  __device__ __forceinline__ static unsigned NumTiles(const Arguments& a) {
    return static_cast<unsigned>((a.max_len_kv + kTileKv - 1) / kTileKv);
  }

 private:
  __device__ __forceinline__ KeyTile(const Arguments& a, const Sequence& block_seq, bool backwards,
                                     const BlockPlace& at, unsigned visits)
      : seq(block_seq),
        band(a, seq),
        head_kv(static_cast<int>(at.head % static_cast<unsigned>(a.heads_kv))),
        descends(at.reversed),
        j0(static_cast<int>(backwards && !at.reversed ? NumTiles(a) - 1 - at.tile : at.tile) *
           kTileKv),
        list{visits} {
    if constexpr (kRowRanges) {
      tile_begin = 0;
      tile_end = j0 < seq.len_kv ? (seq.len_q + kTileQ - 1) / kTileQ : 0;
      return;
    }
    const int first = max(j0 + band.low, 0);
    const int last = min(min(j0 + kTileKv, seq.len_kv) - 1 + band.high, seq.len_q - 1);
    if constexpr (kLengths) {
      full_begin = j0 + kTileKv <= seq.len_kv ? j0 + kTileKv - 1 + band.low : seq.len_q;
      full_end = seq.len_q - kTileQ + 1;
      if constexpr (config::left_bound != 0) full_end = min(full_end, j0 + band.high - kTileQ + 2);
    }
    tile_begin = first / kTileQ;
    tile_end = j0 < seq.len_kv && first <= last ? last / kTileQ + 1 : tile_begin;
  }
};

// Calls visit(step, head, i0) for each tile of queries that sees the block's keys, in the order
// that all roles share: for each head, all tiles, in descending order with keys.descends. Otherwise
// tiles start at keys.Rotation() and wrap around.
// Steps count from `step`; returns the step after the last.
template <class Visit>
__device__ __forceinline__ int ForEachTile(const Arguments& a, const KeyTile& keys,
                                           const Visit& visit, int step = 0) {
  const int first_head = keys.head_kv * a.heads_per_kv;
  const int rotation = keys.Rotation(a);
#pragma unroll 1
  for (int head = first_head; head < first_head + a.heads_per_kv; ++head) {
    const auto next = [&](int tile) {
      return kRowRanges ? keys.list.Next(tile, keys.tile_end) : tile;
    };
#pragma unroll 1
    for (int n = next(keys.tile_begin + rotation); n < keys.tile_end + rotation;
         n = next(n + 1), ++step) {
      int tile = kMayReverse && keys.descends ? keys.tile_begin + keys.tile_end - 1 - n : n;
      // Computed from the arguments instead of keys.tile_end, which saves the consumers a register.
      if (kBeginsApart && tile >= (a.max_len_q + kTileQ - 1) / kTileQ) {
        tile -= (a.max_len_q + kTileQ - 1) / kTileQ;
      }
      visit(step, head, tile * kTileQ);
    }
  }
  return step;
}

}  // namespace sm90
