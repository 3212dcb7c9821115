// A batch entry's geometry, and which keys a query sees (docs/semantics.md, "Diagonal", "Visible",
// "Lengths"). Every rule but mask and bias is a range of keys for each query, so that a tile is
// outside, inside or cut by comparing its ends with the ranges of its rows.
#pragma once
#include "shared/arguments.cuh"

namespace shared {

using attn::device::Arguments;
using attn::device::Integers;
using attn::device::Pairs;
using attn::device::Rows;

struct Entry {
  int b = 0;
  int len_q = 0;
  int len_kv = 0;
  int rows_q = 0;  // rows that outputs have: of packed tensors len_q, else the largest length
  int rows_kv = 0;
  long long first_q = 0;  // packed: the first row
  long long first_kv = 0;
  long long diag = 0;
};

// Lengths are clamped, so that bad ones can't lead out of the tensors.
__device__ __forceinline__ void EntryRows(const Integers& lengths, const Integers& cumulative,
                                          bool packed, int b, int most, int total, int& len,
                                          int& rows, long long& first) {
  len = rows = most;
  first = 0;
  if (packed) {
    const int begin = min(max(cumulative.data[b * cumulative.stride], 0), total);
    const int end = min(max(cumulative.data[(b + 1) * cumulative.stride], 0), total);
    len = rows = min(max(end - begin, 0), most);
    first = begin;
  } else if (lengths.data != nullptr) {
    len = min(max(lengths.data[b * lengths.stride], 0), most);
  }
}

__device__ __forceinline__ Entry EntryOf(const Arguments& a, int b) {
  Entry entry;
  entry.b = b;
  EntryRows(a.len_q, a.cu_len_q, a.packed_q != 0, b, a.max_len_q, a.total_q, entry.len_q,
            entry.rows_q, entry.first_q);
  EntryRows(a.len_kv, a.cu_len_kv, a.packed_kv != 0, b, a.max_len_kv, a.total_kv, entry.len_kv,
            entry.rows_kv, entry.first_kv);
  entry.diag = a.bottom_right != 0 ? entry.len_kv - entry.len_q : a.diag;
  return entry;
}

__device__ __forceinline__ char* RowAddress(const Rows& rows, int b, long long row, int head) {
  return rows.base + b * rows.stride_batch + row * rows.stride_row + head * rows.stride_head;
}

__device__ __forceinline__ char* PairAddress(const Pairs& pairs, int b, int head, long long i,
                                             long long j) {
  return pairs.base + b * pairs.stride_batch + head * pairs.stride_head + i * pairs.stride_q +
         j * pairs.stride_kv;
}

// Keys [begin, end).
struct KeyRange {
  int begin = 0;
  int end = 0;
};

// The keys that query i < entry.len_q sees; {0, 0} where none.
__device__ __forceinline__ KeyRange KeysOf(const Arguments& a, const Entry& entry, int i) {
  const long long at = i + entry.diag;
  long long begin = max(at - a.left, 0ll);
  long long end = min(at + a.right + 1, static_cast<long long>(entry.len_kv));
  if (a.kv_begin.base != nullptr) {
    const char* from = RowAddress(a.kv_begin, entry.b, entry.first_q + i, 0);
    begin = max(begin, static_cast<long long>(*reinterpret_cast<const int*>(from)));
  }
  if (a.kv_end.base != nullptr) {
    const char* from = RowAddress(a.kv_end, entry.b, entry.first_q + i, 0);
    end = min(end, static_cast<long long>(*reinterpret_cast<const int*>(from)));
  }
  if (begin >= end) return {0, 0};
  return {static_cast<int>(begin), static_cast<int>(end)};
}

// Of the queries of a tile: keys outside [first, last) are seen by none, keys inside
// [all_first, all_last) by all of them.
struct TileRange {
  int first = 0x7fffffff;
  int last = 0;
  int all_first = 0;
  int all_last = 0x7fffffff;
};

__device__ __forceinline__ void Join(TileRange& tile, KeyRange keys) {
  if (keys.begin < keys.end) {
    tile.first = min(tile.first, keys.begin);
    tile.last = max(tile.last, keys.end);
  }
  tile.all_first = max(tile.all_first, keys.begin);
  tile.all_last = min(tile.all_last, keys.end);
}

// The whole warp's, of what each lane has.
__device__ __forceinline__ TileRange JoinWarp(TileRange lane) {
  return {__reduce_min_sync(~0u, lane.first), __reduce_max_sync(~0u, lane.last),
          __reduce_max_sync(~0u, lane.all_first), __reduce_min_sync(~0u, lane.all_last)};
}

// The whole block's, of what each warp has: all threads take part and all get it. `scratch` is 4
// integers a warp of shared memory that nothing else uses from here to the next __syncthreads().
template <int kWarps>
__device__ __forceinline__ TileRange JoinBlock(TileRange warp, int* scratch) {
  if (threadIdx.x % 32 == 0) {
    const int at = static_cast<int>(threadIdx.x) / 32 * 4;
    scratch[at] = warp.first;
    scratch[at + 1] = warp.last;
    scratch[at + 2] = warp.all_first;
    scratch[at + 3] = warp.all_last;
  }
  __syncthreads();
  TileRange all;
  for (int w = 0; w < kWarps; ++w) {
    all.first = min(all.first, scratch[4 * w]);
    all.last = max(all.last, scratch[4 * w + 1]);
    all.all_first = max(all.all_first, scratch[4 * w + 2]);
    all.all_last = min(all.all_last, scratch[4 * w + 3]);
  }
  return all;
}

}  // namespace shared
