// Locates the keys of a cache, and computes a sequence's number of keys after an append.
#pragma once
#include "shared/cache.cuh"
#include "shared/sequence.cuh"

namespace shared {

using attn::device::Cache;
using attn::device::Descale;

// A row of a cache: of a page, or of a sequence if the cache is not paged.
struct CacheRow {
  int block;  // the page or the sequence; -1: the key has no page
  int row;
};

// Locates key j of the sequence; j must be below its length.
__device__ __forceinline__ CacheRow CacheRowOf(const Cache& cache, int seq_idx, int j) {
  if (cache.table == nullptr) return {seq_idx, j};
  const int column = j / cache.page_size;
  const int page =
      cache.table[seq_idx * cache.table_stride_batch + column * cache.table_stride_page];
  return {page >= 0 && page < cache.num_pages ? page : -1, j - column * cache.page_size};
}

// Returns the sequence with the rows included that the call appends.
__device__ __forceinline__ Sequence WithNewRows(const Arguments& a, const Cache& cache,
                                                Sequence seq) {
  if (cache.len_new > 0) {
    seq.len_kv = min(seq.len_kv + cache.len_new, a.max_len_kv);
    if (a.bottom_right != 0) seq.diag = seq.len_kv - seq.len_q;
  }
  return seq;
}

}  // namespace shared
