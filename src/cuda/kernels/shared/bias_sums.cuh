// The f32 sums of dbias that the backward adds to: how they lie in memory, so that a lane adds what
// it has of an accumulator by one instruction, and a warp 512 bytes in a row. Of each entry and
// head of the bias (a broadcast dimension counts once) [n / 8][m / 16] accumulators of mma.sync,
// rounded up, 16 keys x 8 queries each: [32 lanes][4], a lane's as it has them.
#pragma once
#include "shared/entry.cuh"

namespace shared {

// Bytes of the accumulators of 8 queries.
__device__ __forceinline__ long long BiasSumStride(const Arguments& a) {
  return (a.max_len_kv + 15) / 16 * 512ll;
}

// The accumulator of queries i to i + 7 and keys j to j + 15, of which the next 16 keys' is 512
// bytes behind it.
__device__ __forceinline__ char* BiasSumAddress(const Arguments& a, int b, int head, int i, int j) {
  return a.dbias_sum + b * a.dbias_sum_stride_batch + head * a.dbias_sum_stride_head +
         i / 8 * BiasSumStride(a) + j / 16 * 512ll;
}

}  // namespace shared
