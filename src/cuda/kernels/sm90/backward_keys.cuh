// The block's tile of keys, and the tiles of queries that see it.
#pragma once
#include "shared/sequence.cuh"
#include "sm90/backward_config.cuh"

namespace sm90 {

using shared::Arguments;
using shared::Sequence;

// Key j is visible to query i if low <= i - j <= high; see Arguments. Lengths are below 2^29
// (backward_plan.cpp), so no sum exceeds 32 bits.
struct Band {
  static constexpr long long kLimit = 1ll << 30;
  int low;
  int high;

  __device__ __forceinline__ Band(const Arguments& a, const Sequence& seq)
      : low(Clamp(-seq.diag - a.window_right)), high(Clamp(a.window_left - seq.diag)) {}

 private:
  __device__ __forceinline__ static int Clamp(long long value) {
    return static_cast<int>(min(max(value, -kLimit), kLimit));
  }
};

struct KeyTile {
  Sequence seq;
  Band band;
  int head_kv;
  int j0;          // the first key
  int tile_begin;  // tiles of queries that see some key
  int tile_end;

  // Deterministic: the last tile first, so that blocks wait only for blocks that started before
  // them.
  __device__ __forceinline__ explicit KeyTile(const Arguments& a)
      : KeyTile(a,
                a.dq_semaphore == nullptr ? blockIdx.x % NumTiles(a)
                                          : NumTiles(a) - 1 - blockIdx.x % NumTiles(a),
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

 private:
  __device__ __forceinline__ static unsigned NumTiles(const Arguments& a) {
    return static_cast<unsigned>((a.max_len_kv + kTileKv - 1) / kTileKv);
  }
  __device__ __forceinline__ KeyTile(const Arguments& a, unsigned tile, unsigned head)
      : seq(shared::SequenceOf(a, static_cast<int>(head / static_cast<unsigned>(a.heads_kv)))),
        band(a, seq),
        head_kv(static_cast<int>(head % static_cast<unsigned>(a.heads_kv))),
        j0(static_cast<int>(tile) * kTileKv) {
    const int first = max(j0 + band.low, 0);
    const int last = min(min(j0 + kTileKv, seq.len_kv) - 1 + band.high, seq.len_q - 1);
    tile_begin = first / kTileQ;
    tile_end = j0 < seq.len_kv && first <= last ? last / kTileQ + 1 : tile_begin;
  }
};

// Calls visit(step, head, i0) for each tile of queries that sees the block's keys, in the order
// that all roles share: heads outside, tiles inside.
template <class Visit>
__device__ __forceinline__ void ForEachTile(const Arguments& a, const KeyTile& keys,
                                            const Visit& visit) {
  const int first_head = keys.head_kv * a.heads_per_kv;
  int step = 0;
#pragma unroll 1
  for (int head = first_head; head < first_head + a.heads_per_kv; ++head) {
#pragma unroll 1
    for (int tile = keys.tile_begin; tile < keys.tile_end; ++tile, ++step) {
      visit(step, head, tile * kTileQ);
    }
  }
}

}  // namespace sm90
