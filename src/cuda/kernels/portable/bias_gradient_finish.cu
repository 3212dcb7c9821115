// After a backward that added ds to sums (shared/bias_sums.cuh): dbias, in its own type and
// strides, rounded once, added to what is there or with non-finite elements replaced where it is so
// asked.
//
// Grid: a block for each (1024 keys, 8 queries, head of the bias, entry of the bias), the keys
// counting fastest. Bound by memory: a lane takes 8 keys of two queries, so that a load of a warp
// is 256 bytes and what it stores of a row 128; two such steps under way at once. Config: none.
#include "config.cuh"
#include "shared/bias_sums.cuh"
#include "shared/output.cuh"
#include "shared/row_chunk.cuh"

namespace {

using namespace shared;

constexpr int kThreads = 128;
constexpr int kKeys = 1024;
constexpr int kAtOnce = 2;
constexpr int kStep = 2 * kThreads;  // keys that a step of the block takes
static_assert(kKeys % (kStep * kAtOnce) == 0);

// Elements j to j + 7 of a row of dbias.
__device__ __forceinline__ void StoreKeys(const Arguments& a, char* row, int j,
                                          const float (&values)[8]) {
  const Pairs& to = a.dbias;
  if (to.vector != 0 && j + 8 <= a.max_len_kv && a.accumulate == 0 &&
      a.nonfinite_count == nullptr) {
    Rows rows;
    rows.type = to.type;
    rows.vector = 1;
    StoreChunk(rows, row, j, a.max_len_kv, values);
    return;
  }
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    if (j + e < a.max_len_kv) StoreGradient(a, row + (j + e) * to.stride_kv, to.type, values[e]);
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads)
    attn_bias_gradient_finish(const __grid_constant__ Arguments a) {
  const unsigned parts = static_cast<unsigned>((a.max_len_kv + kKeys - 1) / kKeys);
  const unsigned eights = static_cast<unsigned>((a.max_len_q + 7) / 8);
  const unsigned heads = (a.dbias_full & 4) != 0 ? static_cast<unsigned>(a.heads_q) : 1;
  const int i0 = static_cast<int>(blockIdx.x / parts % eights) * 8;
  const int h = static_cast<int>(blockIdx.x / parts / eights % heads);
  const int b = static_cast<int>(blockIdx.x / parts / eights / heads);
  const int thread = static_cast<int>(threadIdx.x);
  // Of an accumulator's lanes, 4 g + i / 2 has queries i and i + 1 of keys g and g + 8.
  const int pair = thread % 4;
  const int half = thread / 4 % 2;
  const int first = static_cast<int>(blockIdx.x % parts) * kKeys + thread / 8 * 16;
  const char* sums = BiasSumAddress(a, b, h, i0, 0) + 16 * pair + 8 * half;
#pragma unroll 1
  for (int step = 0; step < kKeys; step += kStep * kAtOnce) {
    float2 loaded[kAtOnce][8];
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) {
      const int j = first + step + n * kStep;
#pragma unroll
      for (int g = 0; g < 8; ++g) {
        loaded[n][g] = float2{};
        if (j < a.max_len_kv) {
          loaded[n][g] = *reinterpret_cast<const float2*>(sums + j * 32ll + 64 * g);
        }
      }
    }
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n)
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        const int i = i0 + 2 * pair + odd;
        if (i >= a.max_len_q) continue;
        float values[8];
#pragma unroll
        for (int g = 0; g < 8; ++g) values[g] = odd == 0 ? loaded[n][g].x : loaded[n][g].y;
        char* row = PairAddress(a.dbias, b, h, i, 0);
        StoreKeys(a, row, first + step + n * kStep + 8 * half, values);
      }
  }
}
