// Converts dbias_accum (shared/dbias_accum.cuh) to dbias in its own type and strides, rounded once.
// If the call requests it, dbias is added to the stored values, or non-finite elements are
// replaced.
//
// Grid: one block per (1024 keys, 8 queries, head of the bias, entry of the bias), keys fastest.
// The kernel is memory-bound: a lane converts 8 keys of two queries, so that a warp loads 256
// contiguous bytes and stores 128 bytes of a row. Two such steps are in flight. Config: none.
#include "config.cuh"
#include "passes/bias_gradient_convert.cuh"
#include "ptx/grid.cuh"
#include "shared/dbias_accum.cuh"
#include "shared/gradient.cuh"
#include "shared/row_chunk.cuh"

namespace {

using namespace shared;

using attn::device::bias_gradient_convert::kKeys;
using attn::device::bias_gradient_convert::kQueries;
using attn::device::bias_gradient_convert::kThreads;

constexpr int kInFlight = 2;         // steps loaded before the first is stored
constexpr int kStep = 2 * kThreads;  // keys that the block converts per step
static_assert(kQueries == 8);        // an accumulator of mma.sync
static_assert(kKeys % (kStep * kInFlight) == 0);

// Stores elements [j, j + 8) of a row of dbias.
__device__ __forceinline__ void StoreKeys(const Arguments& a, char* row, int j,
                                          const float (&values)[8]) {
  const ScoreTensor& to = a.dbias;
  if (to.vector != 0 && j + 8 <= a.max_len_kv && a.accumulate == 0 &&
      a.nonfinite_count == nullptr) {
    StridedTensor rows;
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
    attn_bias_gradient_convert(const __grid_constant__ Arguments a) {
  ptx::WaitForPrimary();
  const unsigned key_blocks = static_cast<unsigned>((a.max_len_kv + kKeys - 1) / kKeys);
  const unsigned query_blocks = static_cast<unsigned>((a.max_len_q + 7) / 8);
  const unsigned heads = (a.dbias_full & 4) != 0 ? static_cast<unsigned>(a.heads_q) : 1;
  const int i0 = static_cast<int>(blockIdx.x / key_blocks % query_blocks) * kQueries;
  const int h = static_cast<int>(blockIdx.x / key_blocks / query_blocks % heads);
  const int b = static_cast<int>(blockIdx.x / key_blocks / query_blocks / heads);
  const int thread = static_cast<int>(threadIdx.x);
  // Lane 4 g + i / 2 of an accumulator holds queries i and i + 1 of keys g and g + 8.
  const int pair = thread % 4;
  const int half = thread / 4 % 2;
  const int first = static_cast<int>(blockIdx.x % key_blocks) * kKeys + thread / 8 * 16;
  const char* sums = DbiasAccumAddress(a, b, h, i0, 0) + 16 * pair + 8 * half;
#pragma unroll 1
  for (int step = 0; step < kKeys; step += kStep * kInFlight) {
    float2 loaded[kInFlight][8];
#pragma unroll
    for (int n = 0; n < kInFlight; ++n) {
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
    for (int n = 0; n < kInFlight; ++n)
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        const int i = i0 + 2 * pair + odd;
        if (i >= a.max_len_q) continue;
        float values[8];
#pragma unroll
        for (int g = 0; g < 8; ++g) values[g] = odd == 0 ? loaded[n][g].x : loaded[n][g].y;
        char* row = ScoreAddress(a.dbias, b, h, i, 0);
        StoreKeys(a, row, first + step + n * kStep + 8 * half, values);
      }
  }
}
