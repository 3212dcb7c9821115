// The tile of keys of a block, or of a cluster, in sm90/backward_wide.cu, and the tiles of queries
// that it visits.
#pragma once
#include "sm90/backward_keys.cuh"
#include "sm90/backward_wide_config.cuh"

namespace sm90 {

// Without `lengths`, the sizes of a sequence are read from the parameters, where they take no
// registers.
__device__ __forceinline__ Sequence WideSequence(const BackwardParams& p) {
  const Arguments& a = p.common;
  const int idx = KeyTile::SequenceIdx(p, blockIdx.x / kCluster);
  if constexpr (kLengths) {
    Sequence seq = shared::SequenceOf(a, idx);
    // The casts save a register each: the first rows of packed sequences fit in 32 bits, and so do
    // diagonals of lengths below 2^29 (Band clamps others).
    seq.first_q = static_cast<int>(seq.first_q);
    seq.first_kv = static_cast<int>(seq.first_kv);
    return seq;
  }
  Sequence seq;
  seq.idx = idx;
  seq.len_q = seq.rows_q = a.max_len_q;
  seq.len_kv = seq.rows_kv = a.max_len_kv;
  seq.diag = a.bottom_right != 0 ? a.max_len_kv - a.max_len_q : a.diag;
  return seq;
}

// A visit of a tile of queries of a head, from query i0. Step -1: before the first visit.
struct Visit {
  int step;
  int head;
  int i0;
};

struct WideKeyTile : KeyTile {
  __device__ __forceinline__ WideKeyTile(const BackwardParams& p, unsigned memory)
      : KeyTile(p, kDeterministic, WideSequence(p), memory + kShared.visits,
                blockIdx.x / kCluster) {}

  // Calls visit() for each tile of queries that sees the block's keys, in the order that all roles
  // share: for each head, all tiles, in descending order with `descends`.
  template <class Call>
  __device__ __forceinline__ void ForEachVisit(const Arguments& a, const Call& visit) const {
    if constexpr (kRowRanges) {
      ForEachTile(a, *this, [&](int step, int head, int i0) { visit(Visit{step, head, i0}); });
      return;
    }
    const int num_visits = NumVisits(a);
    int head = head_kv * a.heads_per_kv;
    int tile = FirstTile();
#pragma unroll 1
    for (int step = 0; step < num_visits; ++step) {
      visit(Visit{step, head, tile * kTileQ});
      if (tile == LastTile()) {
        tile = FirstTile();
        ++head;
      } else {
        tile += Direction();
      }
    }
  }
  // Without row_ranges: the visit before `visit`, and the last visit of all. They are computed,
  // because keeping them would take registers.
  __device__ __forceinline__ Visit Previous(const Visit& visit) const {
    if (visit.i0 != FirstTile() * kTileQ) {
      return {visit.step - 1, visit.head, visit.i0 - Direction() * kTileQ};
    }
    return {visit.step - 1, visit.head - 1, LastTile() * kTileQ};
  }
  __device__ __forceinline__ Visit Last(const Arguments& a) const {
    return {NumVisits(a) - 1, (head_kv + 1) * a.heads_per_kv - 1, LastTile() * kTileQ};
  }

 private:
  __device__ __forceinline__ bool Descends() const {
    return kDeterministic && kMayReverse && descends;
  }
  // The first tile of queries of a head that the block visits, the last, and the step between two.
  __device__ __forceinline__ int FirstTile() const {
    return Descends() ? tile_end - 1 : tile_begin;
  }
  __device__ __forceinline__ int LastTile() const { return Descends() ? tile_begin : tile_end - 1; }
  __device__ __forceinline__ int Direction() const { return Descends() ? -1 : 1; }
  __device__ __forceinline__ int NumVisits(const Arguments& a) const {
    return a.heads_per_kv * (tile_end - tile_begin);
  }
};

}  // namespace sm90
