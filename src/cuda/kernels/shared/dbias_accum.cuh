// dbias_accum: f32 sums of dbias, to which the backward adds. The layout is that of mma.sync
// accumulators, so that a lane adds its four elements with one instruction and a warp adds 512
// contiguous bytes:
//   [entries of the bias][heads of the bias][n / 8][m / 16][32 lanes][4]   (rounded up)
// Each block of 128 elements is an accumulator of 16 keys x 8 queries, in the order of the lanes. A
// broadcast batch or head dimension has size 1.
#pragma once
#include "shared/sequence.cuh"

namespace shared {

// Size in bytes of the accumulators of 8 queries and all keys.
__device__ __forceinline__ long long DbiasAccumStride(const Arguments& a) {
  return (a.max_len_kv + 15) / 16 * 512ll;
}

// Address of the accumulator of queries [i, i + 8) and keys [j, j + 16). That of the next 16 keys
// follows after 512 bytes.
__device__ __forceinline__ char* DbiasAccumAddress(const Arguments& a, int entry, int head, int i,
                                                   int j) {
  return a.dbias_accum + entry * a.dbias_accum_stride_batch + head * a.dbias_accum_stride_head +
         i / 8 * DbiasAccumStride(a) + j / 16 * 512ll;
}

}  // namespace shared
