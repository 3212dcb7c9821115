// The two matrix products of attention: fragments in registers times tiles in shared memory.
#pragma once
#include "ptx/mma.cuh"
#include "sm80/tile.cuh"

namespace sm80 {

// c = X Y^T over kDim columns. load_x(k, x) loads the fragments of X for columns [16 k, 16 k + 16);
// Y: 8 kN rows of a tile from y_row.
template <int dtype, int kDim, int kM, int kN, class LoadX>
__device__ __forceinline__ void MultiplyTransposed(const LoadX& load_x, unsigned y_tile, int y_row,
                                                   float (&c)[kM][kN][4]) {
  const auto y_lane = FragmentLane<kDim>::ColumnsFirst();
#pragma unroll
  for (int k = 0; k < kDim / 16; ++k) {
    unsigned x[kM][4];
    load_x(k, x);
#pragma unroll
    for (int n = 0; n < kN; n += 2) {
      unsigned y[4];
      ptx::LoadMatrix(y, y_lane.At(y_tile, y_row + 8 * n, 2 * k));
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        if (k == 0) {
          ptx::MmaFirst<dtype>(c[m][n], x[m], y[0], y[1]);
          ptx::MmaFirst<dtype>(c[m][n + 1], x[m], y[2], y[3]);
        } else {
          ptx::Mma<dtype>(c[m][n], x[m], y[0], y[1]);
          ptx::Mma<dtype>(c[m][n + 1], x[m], y[2], y[3]);
        }
      }
    }
  }
}

// c += X Y, or c = X Y if `first`. X: 16 columns in kM fragments. Y: 16 rows of a tile from y_row,
// 8 kN columns from chunk y_chunk. y_lane: FragmentLane::RowsFirst(), optionally with StartingAt().
template <int dtype, int kDim, int kM, int kN>
__device__ __forceinline__ void Multiply(const unsigned (*x)[4], FragmentLane<kDim> y_lane,
                                         unsigned y_tile, int y_row, int y_chunk,
                                         float (&c)[kM][kN][4], bool first = false) {
#pragma unroll
  for (int n = 0; n < kN; n += 2) {
    unsigned y[4];
    ptx::LoadMatrixTransposed(y, y_lane.At(y_tile, y_row, y_chunk + n));
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      if (first) {
        ptx::MmaFirst<dtype>(c[m][n], x[m], y[0], y[1]);
        ptx::MmaFirst<dtype>(c[m][n + 1], x[m], y[2], y[3]);
      } else {
        ptx::Mma<dtype>(c[m][n], x[m], y[0], y[1]);
        ptx::Mma<dtype>(c[m][n + 1], x[m], y[2], y[3]);
      }
    }
  }
}

}  // namespace sm80
