// The two matrix products of attention in f32. Config: precision (attn::Precision)
//   tf32    Operands are rounded to tf32; tensor cores multiply.
//   tf32x3  Each operand is the sum of two tf32 (23 bits). Three of the four products are computed,
//           the product of the two small parts is left out. The error of a sum of products is that
//           of f32.
//   ieee    f32 operands, FFMA.
//
// Tensor cores truncate the sums that they accumulate, while f32 additions round. Over many columns
// or keys, truncation would add up to a far larger error. With tf32x3 a sum inside the tensor core
// therefore covers only 8 columns or 16 keys, smaller products first, and an f32 addition adds it
// to the total. With tf32, the rounding of operands is 4000 times coarser than a truncation: a sum
// inside the tensor core covers all columns, or the keys of a tile.
//
// Fragments: ldmatrix loads those of Q and K directly. P is not moved between lanes. Lane t of a
// row holds keys 2t and 2t + 1 of each 8 keys, as accumulators of S, but fragment A expects keys t
// and t + 4. The k index of the product is therefore a permutation of the keys, and the rows of V
// are read in the same order. The columns of V are permuted too: a lane reads 4 adjacent columns at
// once, for four accumulators. Lane (g, t) thus holds columns 32 i + 8 t to 32 i + 8 t + 7 of rows
// g and g + 8 of the result: element c of accumulator 4 i + s is column 32 i + 8 t + 4 c + s.
#pragma once
#include "ptx/mma.cuh"
#include "sm80/tile.cuh"

namespace sm80 {

// Number of parts that each operand is split into.
inline constexpr int kParts = config::precision == config::tf32x3 ? 2 : 1;
inline constexpr bool kIeee = config::precision == config::ieee;
// Half of the lowest bit that tensor cores read of a tf32 operand.
inline constexpr unsigned kHalfOfIgnored = 0x1000;

// tf32: rounds. Tensor cores ignore the last 13 bits of an operand, so that adding half of what
// they ignore rounds to nearest; cvt.rna.tf32 takes an instruction more.
__device__ __forceinline__ unsigned RoundToTf32(unsigned bits) {
  const float x = __uint_as_float(bits);
  return x == x ? bits + kHalfOfIgnored : bits;
}

// Splits x into its parts: x is their sum, up to rounding. If there are two parts, the first is
// rounded. The second therefore has a sign of its own and at most 12 bits, and tensor cores ignore
// only the last one: the mean error is 0. A NaN may become -0 in the first part, but stays NaN in
// the second.
// `rounded`: one part is x itself, because RoundToTf32() has been called for it.
template <bool rounded = false>
__device__ __forceinline__ void Split(float x, unsigned (&parts)[kParts]) {
  const unsigned bits = __float_as_uint(x);
  if constexpr (kIeee || (kParts == 1 && rounded)) {
    parts[0] = bits;
  } else if constexpr (kParts == 1) {
    parts[0] = RoundToTf32(bits);
  } else {
    parts[0] = (bits + kHalfOfIgnored) & ~(2 * kHalfOfIgnored - 1);
    parts[1] = __float_as_uint(x - __uint_as_float(parts[0]));
  }
}

// Turns an accumulator into fragment A. The k index of the product follows the permuted columns.
__device__ __forceinline__ void SplitFragment(const float (&c)[4], unsigned (*fragment)[4]) {
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    unsigned parts[kParts];
    Split(c[e % 2 * 2 + e / 2], parts);
#pragma unroll
    for (int n = 0; n < kParts; ++n) fragment[n][e] = parts[n];
  }
}

// d += a b, or d = a b if `first`. All operands are split; the smaller products are added first.
template <bool first>
__device__ __forceinline__ void MmaF32(float (&d)[4], const unsigned (*a)[4],
                                       const unsigned (&b0)[kParts], const unsigned (&b1)[kParts]) {
  constexpr int kLast = kParts - 1;
  if constexpr (first) {
    ptx::MmaTf32First(d, a[kLast], b0[0], b1[0]);
  } else {
    ptx::MmaTf32(d, a[kLast], b0[0], b1[0]);
  }
  if constexpr (kParts == 2) {
    ptx::MmaTf32(d, a[0], b0[1], b1[1]);
    ptx::MmaTf32(d, a[0], b0[0], b1[0]);
  }
}

__device__ __forceinline__ float4 LoadFloats(unsigned at) {
  const uint4 bits = ptx::LoadShared128(at);
  return {__uint_as_float(bits.x), __uint_as_float(bits.y), __uint_as_float(bits.z),
          __uint_as_float(bits.w)};
}
__device__ __forceinline__ float Dot(float4 x, float4 y, float sum) {
  return fmaf(x.w, y.w, fmaf(x.z, y.z, fmaf(x.y, y.y, fmaf(x.x, y.x, sum))));
}

// c = X Y^T with FFMA. X: 16 kM rows of the tile at x_tile. Y: 8 kN rows of the tile at y_tile.
template <int kDim, int kM, int kN>
__device__ __forceinline__ void MultiplyTransposedIeee(unsigned x_tile, unsigned y_tile,
                                                       float (&c)[kM][kN][4]) {
  using Layout = TileLayout<kDim>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int n = 0; n < kN; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) c[m][n][e] = 0.0f;
#pragma unroll 2
  for (int chunk = 0; chunk < Layout::kChunks; ++chunk) {
    float4 x[kM][2];
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        x[m][r] = LoadFloats(x_tile + Layout::At(16 * m + 8 * r + lane / 4, chunk));
      }
#pragma unroll
    for (int n = 0; n < kN; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float4 y = LoadFloats(y_tile + Layout::At(8 * n + lane % 4 * 2 + e, chunk));
#pragma unroll
        for (int m = 0; m < kM; ++m)
#pragma unroll
          for (int r = 0; r < 2; ++r) c[m][n][2 * r + e] = Dot(x[m][r], y, c[m][n][2 * r + e]);
      }
  }
}

// An infinite operand is not a sum of parts (inf - inf is NaN), so elements that became NaN are
// computed again in f32. One test of the sum of all elements finds out whether there are any.
template <int kDim, int kM, int kN>
__device__ __forceinline__ void RepeatNan(unsigned x_tile, unsigned y_tile, float (&c)[kM][kN][4]) {
  float all = 0.0f;
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int n = 0; n < kN; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) all = fmaf(c[m][n][e], 0.0f, all);
  if (all == 0.0f) return;
  using Layout = TileLayout<kDim>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int n = 0; n < kN; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (c[m][n][e] == c[m][n][e]) continue;
        float sum = 0.0f;
#pragma unroll 1
        for (int chunk = 0; chunk < Layout::kChunks; ++chunk) {
          sum = Dot(LoadFloats(x_tile + Layout::At(16 * m + e / 2 * 8 + lane / 4, chunk)),
                    LoadFloats(y_tile + Layout::At(8 * n + lane % 4 * 2 + e % 2, chunk)), sum);
        }
        c[m][n][e] = sum;
      }
}

// c = X Y^T over kDim columns. X: load_x(k, x) loads the fragments of columns [8 k, 8 k + 8), which
// must equal those of the tile at x_tile. Y: 8 kN rows of a tile from y_row. `rounded`: both tiles
// are.
template <int kDim, bool rounded, int kM, int kN, class LoadX>
__device__ __forceinline__ void MultiplyTransposedF32(const LoadX& load_x, unsigned x_tile,
                                                      unsigned y_tile, int y_row,
                                                      float (&c)[kM][kN][4]) {
  y_tile += static_cast<unsigned>(y_row * TileLayout<kDim>::kRowBytes);
  if constexpr (kIeee) return MultiplyTransposedIeee<kDim>(x_tile, y_tile, c);
  const auto y_lane = FragmentLane<kDim>::ColumnsFirst();
#pragma unroll
  for (int k = 0; k < kDim / 8; ++k) {
    unsigned loaded[kM][4];
    load_x(k, loaded);
    unsigned x[kM][kParts][4];
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        unsigned parts[kParts];
        Split<rounded>(__uint_as_float(loaded[m][e]), parts);
#pragma unroll
        for (int n = 0; n < kParts; ++n) x[m][n][e] = parts[n];
      }
#pragma unroll
    for (int n = 0; n < kN; n += 2) {
      unsigned raw[4];
      ptx::LoadMatrix(raw, y_lane.At(y_tile, 8 * n, 2 * k));
      unsigned y[4][kParts];
#pragma unroll
      for (int e = 0; e < 4; ++e) Split<rounded>(__uint_as_float(raw[e]), y[e]);
#pragma unroll
      for (int m = 0; m < kM; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float(&total)[4] = c[m][n + half];
          if (kParts == 1 && k > 0) {
            MmaF32<false>(total, x[m], y[2 * half], y[2 * half + 1]);
            continue;
          }
          float sum[4];
          MmaF32<true>(sum, x[m], y[2 * half], y[2 * half + 1]);
#pragma unroll
          for (int e = 0; e < 4; ++e) total[e] = k == 0 ? sum[e] : total[e] + sum[e];
        }
    }
  }
  if constexpr (kParts == 2) RepeatNan<kDim>(x_tile, y_tile, c);
}

// c += X Y with FFMA; arguments as for MultiplyF32().
template <int kDim, int kRows, int kM>
__device__ __forceinline__ void MultiplyIeee(const unsigned (&x)[kM][kRows / 8][4], unsigned y_tile,
                                             float (&c)[kM][kDim / 8][4]) {
  using Layout = TileLayout<kDim>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll 1
  for (int source = 0; source < 4; ++source) {
#pragma unroll
    for (int k = 0; k < kRows / 8; ++k)
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        float of_rows[kM][2];
#pragma unroll
        for (int m = 0; m < kM; ++m)
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            of_rows[m][r] =
                __shfl_sync(~0u, __uint_as_float(x[m][k][2 * odd + r]), (lane & ~3) | source);
          }
#pragma unroll
        for (int chunk = 0; chunk < kDim / 16; ++chunk) {
          const int column = chunk / 2 * 8 + lane % 4 * 2 + chunk % 2;
          const float4 y = LoadFloats(y_tile + Layout::At(8 * k + 2 * source + odd, column));
          const float ys[4]{y.x, y.y, y.z, y.w};
#pragma unroll
          for (int m = 0; m < kM; ++m)
#pragma unroll
            for (int r = 0; r < 2; ++r)
#pragma unroll
              for (int s = 0; s < 4; ++s) {
                float& sum = c[m][chunk / 2 * 4 + s][2 * r + chunk % 2];
                sum = fmaf(of_rows[m][r], ys[s], sum);
              }
        }
      }
  }
}

// c += X Y. X: kRows columns, the accumulators of kRows / 8 blocks after SplitFragment(). Y: a tile
// of kRows rows. The columns of c are permuted as described at the top of this file. `rounded`: the
// tile is.
template <int kDim, int kRows, bool rounded, int kM>
__device__ __forceinline__ void MultiplyF32(const unsigned (&x)[kM][kRows / 8 * kParts][4],
                                            unsigned y_tile, float (&c)[kM][kDim / 8][4]) {
  if constexpr (kIeee) {
    return MultiplyIeee<kDim, kRows>(x, y_tile, c);
  } else {
    constexpr int kSteps = kParts == 1 ? kRows / 8 : 2;  // of 8 rows, in a sum of the tensor core
    static_assert(kRows / 8 % kSteps == 0 && kDim % 32 == 0);
    using Layout = TileLayout<kDim>;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const unsigned even = y_tile + Layout::At(lane % 4 * 2, lane / 4);
    const unsigned odd = y_tile + Layout::At(lane % 4 * 2 + 1, lane / 4);
#pragma unroll
    for (int i = 0; i < kDim / 32; ++i) {
      float sum[kM][4][4];
#pragma unroll
      for (int k = 0; k < kRows / 8; ++k) {
        const auto offset = static_cast<unsigned>(8 * k * Layout::kRowBytes + 128 * i);
        const float4 y0 = LoadFloats(even + offset);
        const float4 y1 = LoadFloats(odd + offset);
        const float ys[2][4]{{y0.x, y0.y, y0.z, y0.w}, {y1.x, y1.y, y1.z, y1.w}};
#pragma unroll
        for (int s = 0; s < 4; ++s) {
          unsigned b0[kParts];
          unsigned b1[kParts];
          Split<rounded>(ys[0][s], b0);
          Split<rounded>(ys[1][s], b1);
#pragma unroll
          for (int m = 0; m < kM; ++m) {
            if (k % kSteps == 0) {
              MmaF32<true>(sum[m][s], &x[m][k * kParts], b0, b1);
            } else {
              MmaF32<false>(sum[m][s], &x[m][k * kParts], b0, b1);
            }
            if (k % kSteps != kSteps - 1) continue;
#pragma unroll
            for (int e = 0; e < 4; ++e) c[m][4 * i + s][e] += sum[m][s][e];
          }
        }
      }
    }
  }
}

// Steps of 8 rows in one call of MultiplyStepsF32().
inline constexpr int kStepsF32 = kParts == 2 ? 2 : 1;

// c += X Y for 8 kStepsF32 columns of X, as many rows of Y from y_row and 8 kN columns of Y from
// `column`. The k index of X is permuted as described at the top, the columns of Y are not.
// x[step][m][part]: fragment m. `rounded`: the tile is.
template <int kDim, bool rounded, int kM, int kN>
__device__ __forceinline__ void MultiplyStepsF32(const unsigned (&x)[kStepsF32][kM][kParts][4],
                                                 unsigned y_tile, int y_row, int column,
                                                 float (&c)[kM][kN][4]) {
  using Layout = TileLayout<kDim>;
  const int lane = ptx::RereadThreadIdx() % 32;  // re-read: keeping it spills
  const auto at = [&](int row, int from) {
    return y_tile + Layout::At(y_row + row, from / 4) + static_cast<unsigned>(from % 4 * 4);
  };
  if constexpr (kIeee) {
#pragma unroll
    for (int row = 0; row < 8; ++row) {
      float of_rows[kM][2];
#pragma unroll
      for (int m = 0; m < kM; ++m)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          of_rows[m][r] =
              __shfl_sync(~0u, __uint_as_float(x[0][m][0][row % 2 * 2 + r]), (lane & ~3) | row / 2);
        }
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        const uint2 y = ptx::LoadShared64(at(row, column + 8 * n + lane % 4 * 2));
#pragma unroll
        for (int m = 0; m < kM; ++m)
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            float* const sums = c[m][n] + 2 * r;
            sums[0] = fmaf(of_rows[m][r], __uint_as_float(y.x), sums[0]);
            sums[1] = fmaf(of_rows[m][r], __uint_as_float(y.y), sums[1]);
          }
      }
    }
  } else {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      float sum[kM][4];
#pragma unroll
      for (int step = 0; step < kStepsF32; ++step) {
        unsigned y[2][kParts];
#pragma unroll
        for (int odd = 0; odd < 2; ++odd) {
          const unsigned raw =
              ptx::LoadShared32(at(8 * step + lane % 4 * 2 + odd, column + 8 * n + lane / 4));
          Split<rounded>(__uint_as_float(raw), y[odd]);
        }
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          if constexpr (kParts == 1) {
            MmaF32<false>(c[m][n], x[step][m], y[0], y[1]);
          } else if (step == 0) {
            MmaF32<true>(sum[m], x[step][m], y[0], y[1]);
          } else {
            MmaF32<false>(sum[m], x[step][m], y[0], y[1]);
          }
        }
      }
      if constexpr (kParts == 1) continue;
#pragma unroll
      for (int m = 0; m < kM; ++m)
#pragma unroll
        for (int e = 0; e < 4; ++e) c[m][n][e] += sum[m][e];
    }
  }
}

}  // namespace sm80
