// Products of fragments with tiles in shared memory, the two that attention is made of.
#pragma once
#include "ptx/mma.cuh"
#include "shared/tile.cuh"

namespace shared {

// c = X Y^T over kDim columns: rows of X in fragments, which load_x(k, x) gives for columns 16 k..,
// and 8 kN rows of the tile Y from y_row on.
template <int dtype, int kDim, int kM, int kN, class LoadX>
__device__ __forceinline__ void MultiplyTransposed(const LoadX& load_x, unsigned y_tile, int y_row,
                                                   float (&c)[kM][kN][4]) {
  const auto y_lane = FragmentLane<kDim>::ColumnsFirst();
  constexpr int kSteps = kDim / 16;
  // With config::ahead each fragment is loaded before the products of the one before it.
  constexpr bool kAhead = config::ahead != 0;
  unsigned x[2][kM][4];
  unsigned y[2][4];
  const auto load_y = [&](int k, int n) {
    ptx::LoadMatrix(y[(k * kN + n) / 2 % 2], y_lane.At(y_tile, y_row + 8 * n, 2 * k));
  };
  if (kAhead) {
    load_x(0, x[0]);
    load_y(0, 0);
  }
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
    if (!kAhead) load_x(k, x[k % 2]);
#pragma unroll
    for (int n = 0; n < kN; n += 2) {
      if (!kAhead) {
        load_y(k, n);
      } else if (n + 2 < kN) {
        load_y(k, n + 2);
      } else if (k + 1 < kSteps) {
        load_x(k + 1, x[(k + 1) % 2]);
        load_y(k + 1, 0);
      }
      const unsigned(&b)[4] = y[(k * kN + n) / 2 % 2];
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        const unsigned(&a)[4] = x[k % 2][m];
        if (k == 0) {
          ptx::MmaFirst<dtype>(c[m][n], a, b[0], b[1]);
          ptx::MmaFirst<dtype>(c[m][n + 1], a, b[2], b[3]);
        } else {
          ptx::Mma<dtype>(c[m][n], a, b[0], b[1]);
          ptx::Mma<dtype>(c[m][n + 1], a, b[2], b[3]);
        }
      }
    }
  }
}

// c += X Y (c = X Y where `first`): X of 16 columns in kM fragments, 16 rows of the tile Y from
// y_row on, 8 kN columns from chunk y_chunk on. y_lane: FragmentLane::RowsFirst() or behind it.
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

}  // namespace shared
