// Writes rows of results from the accumulators of MultiplyF32() to global memory. A lane holds 8
// adjacent columns of each 32, so it can store 16 bytes at a time without passing through shared
// memory.
#pragma once
#include "shared/gradient.cuh"
#include "shared/sequence.cuh"

namespace sm80 {

using namespace shared;

// Writes row n of the warp's 16 kM rows to `to` + n * stride_row; the first num_rows rows exist.
// `accumulate`: adds to the stored values.
template <int kM, int kN>
__device__ __forceinline__ void WriteRowsF32(const Arguments& a, const StridedTensor& rows,
                                             char* to, int num_rows, int dim,
                                             const float (&c)[kM][kN][4], bool accumulate = false) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const bool packed =
      rows.vector != 0 && rows.type == config::f32 && !accumulate && a.nonfinite_count == nullptr;
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = 16 * m + 8 * r + lane / 4;
      if (row >= num_rows) continue;
      char* const at_row = to + row * rows.stride_row;
#pragma unroll
      for (int n = 0; n < kN; n += 4)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int column = 8 * n + lane % 4 * 8 + 4 * e;
          if (column >= dim) continue;
          const float values[4]{c[m][n][2 * r + e], c[m][n + 1][2 * r + e], c[m][n + 2][2 * r + e],
                                c[m][n + 3][2 * r + e]};
          if (packed) {
            *reinterpret_cast<float4*>(at_row + column * 4) = {values[0], values[1], values[2],
                                                               values[3]};
            continue;
          }
#pragma unroll
          for (int s = 0; s < 4; ++s) {
            if (column + s >= dim) continue;
            char* const at = at_row + (column + s) * ElementBytes(rows.type);
            const float old = accumulate ? LoadElement(at, rows.type) : 0.0f;
            StoreElement(at, rows.type, Finite(a, accumulate ? values[s] + old : values[s]));
          }
        }
    }
}

}  // namespace sm80
