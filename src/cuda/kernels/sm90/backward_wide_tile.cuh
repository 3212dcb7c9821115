// The block's tile of keys in sm90/backward_wide.cu, and the tiles of queries that see it. Every
// sequence has all rows of its tensors, so that its sizes come from the parameters, where they take
// no registers.
#pragma once
#include "sm90/backward_band.cuh"
#include "sm90/backward_wide_config.cuh"

namespace sm90 {

__device__ __forceinline__ Sequence WholeSequence(const Arguments& a, unsigned idx) {
  Sequence seq;
  seq.idx = static_cast<int>(idx);
  seq.len_q = seq.rows_q = a.max_len_q;
  seq.len_kv = seq.rows_kv = a.max_len_kv;
  seq.diag = a.bottom_right != 0 ? a.max_len_kv - a.max_len_q : a.diag;
  return seq;
}

// A tile of queries of a head, from query i0.
struct Visit {
  int step;
  int head;
  int i0;
};

struct WideKeyTile {
  Sequence seq;
  Band band;
  int head_kv;
  int j0;          // the first key
  int tile_begin;  // tiles of queries that see some key
  int tile_end;

  // Deterministic: the last tile first, so that blocks wait only for blocks that started before
  // them.
  __device__ __forceinline__ explicit WideKeyTile(const Arguments& a)
      : WideKeyTile(
            a,
            kDeterministic ? NumTiles(a) - 1 - blockIdx.x % NumTiles(a) : blockIdx.x % NumTiles(a),
            blockIdx.x / NumTiles(a)) {}

  // Whether every query of the tile from i0 sees every key.
  __device__ __forceinline__ bool IsFull(int i0) const {
    return j0 + kTileKv <= seq.len_kv && i0 >= j0 + kTileKv - 1 + band.low &&
           (config::left_bound == 0 || i0 + kTileQ - 1 <= j0 + band.high);
  }
  // How many later tiles of keys visit a tile of queries, from i0, that the block visits.
  __device__ __forceinline__ int NumLaterVisitors(int i0) const {
    const int last_query = min(i0 + kTileQ, seq.len_q) - 1;
    const int last_key = min(last_query - band.low, seq.len_kv - 1);
    return last_key / kTileKv - j0 / kTileKv;
  }

  // Calls visit() for each tile of queries that sees the block's keys, in the order that all roles
  // share: heads outside, tiles inside.
  template <class Call>
  __device__ __forceinline__ void ForEachTile(const Arguments& a, const Call& visit) const {
    const int num_visits = NumVisits(a);
    int head = head_kv * a.heads_per_kv;
    int tile = tile_begin;
#pragma unroll 1
    for (int step = 0; step < num_visits; ++step) {
      visit(Visit{step, head, tile * kTileQ});
      if (++tile == tile_end) {
        tile = tile_begin;
        ++head;
      }
    }
  }
  __device__ __forceinline__ int NumVisits(const Arguments& a) const {
    return a.heads_per_kv * (tile_end - tile_begin);
  }
  // The visit before one, and the last.
  __device__ __forceinline__ Visit Previous(const Visit& visit) const {
    if (visit.i0 > tile_begin * kTileQ) return {visit.step - 1, visit.head, visit.i0 - kTileQ};
    return {visit.step - 1, visit.head - 1, (tile_end - 1) * kTileQ};
  }
  __device__ __forceinline__ Visit Last(const Arguments& a) const {
    return {NumVisits(a) - 1, (head_kv + 1) * a.heads_per_kv - 1, (tile_end - 1) * kTileQ};
  }

 private:
  __device__ __forceinline__ static unsigned NumTiles(const Arguments& a) {
    return static_cast<unsigned>((a.max_len_kv + kTileKv - 1) / kTileKv);
  }
  __device__ __forceinline__ WideKeyTile(const Arguments& a, unsigned tile, unsigned head)
      : seq(WholeSequence(a, head / static_cast<unsigned>(a.heads_kv))),
        band(a, seq),
        head_kv(static_cast<int>(head % static_cast<unsigned>(a.heads_kv))),
        j0(static_cast<int>(tile) * kTileKv) {
    const int first = max(j0 + band.low, 0);
    const int last = min(min(j0 + kTileKv, seq.len_kv) - 1 + band.high, seq.len_q - 1);
    tile_begin = first / kTileQ;
    tile_end = first <= last ? last / kTileQ + 1 : tile_begin;
  }
};

}  // namespace sm90
