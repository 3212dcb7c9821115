// The tile of dbias that a block of sm90/bias_gradient.cu computes, and its visits.
#pragma once
#include "shared/sequence.cuh"
#include "sm90/backward_band.cuh"
#include "sm90/bias_gradient_config.cuh"

namespace sm90::bias_gradient {

// A visit is one (sequence, query head) that uses the tile of the bias. Without lengths and key
// ranges, all visits have the same visible keys.
struct BlockTile {
  int i0, j0;       // first query and key
  int head, entry;  // of the bias; 0 if it broadcasts heads or sequences
  int split;
  Band band;
  bool is_full;    // every query sees every key
  int num_heads;   // query heads of a sequence that are visited
  int begin;       // the first visit, in the order of ForEachVisit
  int num_visits;  // of this split; 0 if no query sees a key

  __device__ __forceinline__ explicit BlockTile(const Arguments& a)
      : BlockTile(a, shared::SequenceOf(a, 0)) {}

  // Calls visit(step, seq_idx, query head) for each visit, heads fastest. Steps count from 0.
  template <class Visit>
  __device__ __forceinline__ void ForEachVisit(const Arguments& a, const Visit& visit) const {
    int seq_idx = entry * a.dbias_sharers + begin / num_heads;
    int h = begin % num_heads;
#pragma unroll 1
    for (int step = 0; step < num_visits; ++step) {
      visit(step, seq_idx, head + h);
      if (++h == num_heads) {
        h = 0;
        ++seq_idx;
      }
    }
  }

 private:
  __device__ __forceinline__ BlockTile(const Arguments& a, const Sequence& seq) : band(a, seq) {
    constexpr int kHeads = 4;  // of dbias_full
    unsigned rest = blockIdx.x;
    const auto next = [&](int count) {
      const unsigned index = rest % static_cast<unsigned>(count);
      rest /= static_cast<unsigned>(count);
      return static_cast<int>(index);
    };
    const bool full_head = (a.dbias_full & kHeads) != 0;
    j0 = next((a.max_len_kv + kTile - 1) / kTile) * kTile;
    i0 = next((a.max_len_q + kTile - 1) / kTile) * kTile;
    head = next(full_head ? a.heads_q : 1);
    entry = next(a.dbias_entries);
    split = static_cast<int>(rest);
    num_heads = full_head ? 1 : a.heads_q;
    const long long visits = 1ll * a.dbias_sharers * num_heads;
    begin = static_cast<int>(visits * split / a.splits);
    num_visits = static_cast<int>(visits * (split + 1) / a.splits) - begin;
    // The range of query - key within the tile.
    const int least = i0 - (min(j0 + kTile, a.max_len_kv) - 1);
    const int most = min(i0 + kTile, a.max_len_q) - 1 - j0;
    is_full = least >= band.low && most <= band.high;
    if (most < band.low || least > band.high) num_visits = 0;
  }
};

}  // namespace sm90::bias_gradient
