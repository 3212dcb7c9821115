// Sequence: one batch entry with its own lengths; and the keys that a query sees
// (docs/semantics.md, "Diagonal", "Visible", "Lengths"). Every visibility rule except mask and bias
// gives each query one range of keys. Comparing a tile's ends with the ranges of its rows therefore
// tells whether it is hidden, full (every row sees every key) or partial.
#pragma once
#include "shared/arguments.cuh"

namespace shared {

using attn::device::Arguments;
using attn::device::LengthArray;
using attn::device::ScoreTensor;
using attn::device::StridedTensor;

struct Sequence {
  int idx = 0;
  int len_q = 0;
  int len_kv = 0;
  int rows_q = 0;  // rows that outputs have: len_q of packed tensors, else max_len_q
  int rows_kv = 0;
  long long first_q = 0;  // first row, 0 unless packed
  long long first_kv = 0;
  long long diag = 0;
};

// Lengths are clamped, so that bad values cannot address memory outside the tensors.
__device__ __forceinline__ void SequenceRows(const LengthArray& lengths,
                                             const LengthArray& cumulative, bool packed,
                                             int seq_idx, int max_len, int total, int& len,
                                             int& rows, long long& first) {
  len = rows = max_len;
  first = 0;
  if (packed) {
    const int begin = min(max(cumulative.data[seq_idx * cumulative.stride], 0), total);
    const int end = min(max(cumulative.data[(seq_idx + 1) * cumulative.stride], 0), total);
    len = rows = min(max(end - begin, 0), max_len);
    first = begin;
  } else if (lengths.data != nullptr) {
    len = min(max(lengths.data[seq_idx * lengths.stride], 0), max_len);
  }
}

__device__ __forceinline__ Sequence SequenceOf(const Arguments& a, int seq_idx) {
  Sequence seq;
  seq.idx = seq_idx;
  SequenceRows(a.len_q, a.cu_len_q, a.packed_q != 0, seq_idx, a.max_len_q, a.total_q, seq.len_q,
               seq.rows_q, seq.first_q);
  SequenceRows(a.len_kv, a.cu_len_kv, a.packed_kv != 0, seq_idx, a.max_len_kv, a.total_kv,
               seq.len_kv, seq.rows_kv, seq.first_kv);
  seq.diag = a.bottom_right != 0 ? seq.len_kv - seq.len_q : a.diag;
  return seq;
}

__device__ __forceinline__ char* RowAddress(const StridedTensor& tensor, int seq_idx, long long row,
                                            int head) {
  return tensor.base + seq_idx * tensor.stride_batch + row * tensor.stride_row +
         head * tensor.stride_head;
}

__device__ __forceinline__ char* ScoreAddress(const ScoreTensor& tensor, int entry, int head,
                                              long long i, long long j) {
  return tensor.base + entry * tensor.stride_batch + head * tensor.stride_head +
         i * tensor.stride_q + j * tensor.stride_kv;
}

// Keys [begin, end).
struct KeyRange {
  int begin = 0;
  int end = 0;
};

// Returns the keys that query i < seq.len_q sees; {0, 0} if none.
__device__ __forceinline__ KeyRange VisibleKeys(const Arguments& a, const Sequence& seq, int i) {
  const long long diagonal = i + seq.diag;
  long long begin = max(diagonal - a.window_left, 0ll);
  long long end = min(diagonal + a.window_right + 1, static_cast<long long>(seq.len_kv));
  if (a.kv_begin.base != nullptr) {
    const char* from = RowAddress(a.kv_begin, seq.idx, seq.first_q + i, 0);
    begin = max(begin, static_cast<long long>(*reinterpret_cast<const int*>(from)));
  }
  if (a.kv_end.base != nullptr) {
    const char* from = RowAddress(a.kv_end, seq.idx, seq.first_q + i, 0);
    end = min(end, static_cast<long long>(*reinterpret_cast<const int*>(from)));
  }
  if (begin >= end) return {0, 0};
  return {static_cast<int>(begin), static_cast<int>(end)};
}

// The key ranges of a tile of queries. Keys that some query sees are in [any_begin, any_end); every
// query sees all keys of [all_begin, all_end).
struct TileRange {
  int any_begin = 0x7fffffff;
  int any_end = 0;
  int all_begin = 0;
  int all_end = 0x7fffffff;
};

__device__ __forceinline__ void Include(TileRange& tile, KeyRange keys) {
  if (keys.begin < keys.end) {
    tile.any_begin = min(tile.any_begin, keys.begin);
    tile.any_end = max(tile.any_end, keys.end);
  }
  tile.all_begin = max(tile.all_begin, keys.begin);
  tile.all_end = min(tile.all_end, keys.end);
}

// Combines the ranges of a warp's lanes; every lane gets the result.
__device__ __forceinline__ TileRange ReduceWarp(TileRange lane) {
  return {__reduce_min_sync(~0u, lane.any_begin), __reduce_max_sync(~0u, lane.any_end),
          __reduce_max_sync(~0u, lane.all_begin), __reduce_min_sync(~0u, lane.all_end)};
}

// Combines the ranges of the block's warps. All threads call it and get the result. `scratch`: 4
// integers per warp in shared memory, which nothing else may use until the next __syncthreads().
template <int kWarps>
__device__ __forceinline__ TileRange ReduceBlock(TileRange warp, int* scratch) {
  if (threadIdx.x % 32 == 0) {
    const int at = static_cast<int>(threadIdx.x) / 32 * 4;
    scratch[at] = warp.any_begin;
    scratch[at + 1] = warp.any_end;
    scratch[at + 2] = warp.all_begin;
    scratch[at + 3] = warp.all_end;
  }
  __syncthreads();
  TileRange all;
  for (int w = 0; w < kWarps; ++w) {
    all.any_begin = min(all.any_begin, scratch[4 * w]);
    all.any_end = max(all.any_end, scratch[4 * w + 1]);
    all.all_begin = max(all.all_begin, scratch[4 * w + 2]);
    all.all_end = min(all.all_end, scratch[4 * w + 3]);
  }
  return all;
}

}  // namespace shared
