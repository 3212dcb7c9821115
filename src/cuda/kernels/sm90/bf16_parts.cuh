// f32 as the sum of bf16 parts, for tensor cores: 8 bits of the significand each. Three parts have
// the accuracy of f32. Two (precision tf32) have 16 bits, tf32 has 11.
//
// The first of three parts is truncated, because rounding would overflow near the largest f32. The
// others are rounded, so that the products that are left out (the second part times the third, and
// smaller ones) have either sign. With two parts, the product of both second parts is left out, so
// the first is rounded too. It overflows within 0.2 % of the largest f32. An infinite or NaN
// element has a NaN among its parts.
#pragma once
#include "ptx/math.cuh"
#include "ptx/memory.cuh"

namespace sm90 {

inline constexpr int kBf16Parts = config::bf16_parts == 2 ? 2 : 3;
// Products of parts of A and B, smallest first: tensor cores truncate their sums, and small sums
// lose little. Two parts have the last three.
inline constexpr int kPartProducts = 6;
inline constexpr int kFirstProduct = kBf16Parts == 2 ? 3 : 0;
inline constexpr int kPartOfA[kPartProducts] = {2, 0, 1, 1, 0, 0};
inline constexpr int kPartOfB[kPartProducts] = {0, 2, 1, 0, 1, 0};

// Splits x and y into parts; each pair has x in its lower half.
__device__ __forceinline__ void SplitPair(float x, float y, unsigned (&pairs)[kBf16Parts]) {
  if constexpr (kBf16Parts == 3) {
    pairs[0] = ptx::PermuteBytes(__float_as_uint(x), __float_as_uint(y), 0x7632);
    x -= __uint_as_float(__float_as_uint(x) & 0xffff0000u);
    y -= __uint_as_float(__float_as_uint(y) & 0xffff0000u);
  } else {
    pairs[0] = ptx::Pack<config::bf16>(x, y);
    x -= ptx::Low<config::bf16>(pairs[0]);
    y -= ptx::High<config::bf16>(pairs[0]);
  }
  pairs[1] = ptx::Pack<config::bf16>(x, y);
  if constexpr (kBf16Parts == 3) {
    x -= ptx::Low<config::bf16>(pairs[1]);
    y -= ptx::High<config::bf16>(pairs[1]);
    pairs[2] = ptx::Pack<config::bf16>(x, y);
  }
}

// Stores the parts of four adjacent elements to shared memory, at a distance of part_bytes.
__device__ __forceinline__ void StoreParts(unsigned to, int part_bytes, float4 x) {
  unsigned low[kBf16Parts];
  unsigned high[kBf16Parts];
  SplitPair(x.x, x.y, low);
  SplitPair(x.z, x.w, high);
#pragma unroll
  for (int part = 0; part < kBf16Parts; ++part) {
    ptx::StoreShared64(to + static_cast<unsigned>(part * part_bytes), __uint_as_float(low[part]),
                       __uint_as_float(high[part]));
  }
}

// A block of kRows rows x 64 columns, which 128 threads copy from global to shared memory in the
// layout of wgmma operands: rows of 128 bytes in 128-byte swizzle. A thread has 4 columns of every
// 8th row.
template <int kRows>
struct RowBlock {
  static_assert(kRows % 8 == 0);
  float4 x[kRows / 8];

  // `at`: the first row's first column; a thread's offset from it fits in 32 bits. Rows from `rows`
  // on and columns from `columns` (a multiple of 4) on become 0. Either number may be negative if
  // the tensor has an element before `at`. The loads do not branch on them: a thread past the end
  // loads the last row or columns, and Hide() zeroes them after they have arrived.
  __device__ __forceinline__ void Load(const char* at, long long stride_row, int rows, int columns,
                                       int thread) {
    at += min(thread % 16 * 4, columns - 4) * 4;
    const int stride = static_cast<int>(stride_row);
#pragma unroll
    for (int j = 0; j < kRows / 8; ++j) {
      const long long row = min(thread / 16 + 8 * j, rows - 1);
      x[j] = *reinterpret_cast<const float4*>(at + row * stride);
    }
  }
  __device__ __forceinline__ void Hide(int rows, int columns, int thread) {
    if (rows >= kRows && columns >= 64) return;
#pragma unroll
    for (int j = 0; j < kRows / 8; ++j) {
      if (thread / 16 + 8 * j >= rows || thread % 16 * 4 >= columns) x[j] = {};
    }
  }
  __device__ __forceinline__ void Store(unsigned to, int part_bytes, int thread) const {
    const unsigned row = static_cast<unsigned>(thread / 16);  // row % 8 of each row of this thread
    const unsigned column = static_cast<unsigned>(thread % 16);
    to += row * 128 + ((column / 2 ^ row) << 4) + column % 2 * 8;
#pragma unroll
    for (int j = 0; j < kRows / 8; ++j) {
      StoreParts(to + static_cast<unsigned>(j * 1024), part_bytes, x[j]);
    }
  }
};

}  // namespace sm90
