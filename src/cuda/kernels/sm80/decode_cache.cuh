// sm80/decode.cu: products with 8-bit K and V, which are converted to f16 in registers. Descale
// factors multiply the scores, and o or P, instead of each element.
//
// ldmatrix reads a row of K or V in shared memory as a row of pairs of bytes (KvLayout). From 8
// rows and 16 columns, lane l (g = l / 4, t = l % 4) gets
//   of K:              columns 4t .. 4t + 3 of row g
//   of V, transposed:  columns 2g, 2g + 1 of rows 2t and 2t + 1
// Q K^T does not depend on the order of columns, as long as Q has the same order (QueryColumn()).
// The columns of P V have the order 0 2 4 .. 14, 1 3 5 .. 15, which StageQuantizedRow() undoes.
#pragma once
#include "sm80/decode_rows.cuh"

namespace sm80::decode {

// Returns the descale factor of K or V for the block's sequence and key head.
__device__ __forceinline__ float DescaleOf(const attn::device::Descale& descale,
                                           const Block& block) {
  if (descale.base == nullptr) return 1.0f;
  return descale.base[block.seq.idx * descale.stride_batch + block.head_kv * descale.stride_head];
}

static_assert(!kQuantized || kKvType == config::f8e4m3 || kKvType == config::f8e5m2 ||
              kKvType == config::i8);

// Converts bytes 0 and 1 of the word to f16 in pairs[0], bytes 2 and 3 to pairs[1]. The conversion
// is exact and keeps NaN and infinity.
__device__ __forceinline__ void Dequantize(unsigned word, unsigned (&pairs)[2]) {
  if constexpr (kKvType == config::f8e5m2) {
    pairs[0] = __byte_perm(word, 0, 0x1404);  // the upper byte of f16
    pairs[1] = __byte_perm(word, 0, 0x3424);
  } else if constexpr (kKvType == config::i8) {
    // The byte plus 128 becomes the low mantissa bits of an f16: 1024 + [0, 256). Then 1152 is
    // subtracted.
    const unsigned shifted = word ^ 0x80808080u;
    pairs[0] = ptx::SubtractF16(__byte_perm(shifted, 0x64646464u, 0x4140), 0x64806480u);
    pairs[1] = ptx::SubtractF16(__byte_perm(shifted, 0x64646464u, 0x4342), 0x64806480u);
  } else {
    ptx::UnpackE4m3(word, pairs);
  }
}

// s = Q K^T before any factor is applied. load_q(k, fragment) loads fragment k of Q.
template <class LoadQ>
__device__ __forceinline__ void MultiplyQuantizedK(const LoadQ& load_q, unsigned k_tile,
                                                   Scores& s) {
  const auto lane = FragmentLane<kDim / 2>::ColumnsFirst();
#pragma unroll
  for (int k = 0; k < kBlocksK; k += 2) {
    unsigned q[2][1][4];
    load_q(k, q[0]);
    load_q(k + 1, q[1]);
#pragma unroll
    for (int n = 0; n < kBlocksN; n += 2) {
      unsigned words[4];  // 8 keys and 16 columns: (n, k), (n, k + 1), (n + 1, k), (n + 1, k + 1)
      ptx::LoadMatrix(words, lane.At(k_tile, 8 * n, k));
#pragma unroll
      for (int part = 0; part < 4; ++part) {
        float(&c)[4] = s[0][n + part / 2];
        unsigned pairs[2];
        Dequantize(words[part], pairs);
        if (k + part % 2 == 0) {
          ptx::MmaFirst<kMmaType>(c, q[0][0], pairs[0], pairs[1]);
        } else {
          ptx::Mma<kMmaType>(c, q[part % 2][0], pairs[0], pairs[1]);
        }
      }
    }
  }
}

// o += P V for the 16 keys from `row` of the tile.
__device__ __forceinline__ void MultiplyQuantizedV(const unsigned (&p)[4], unsigned v_tile, int row,
                                                   Output& o) {
  const auto lane = FragmentLane<kDim / 2>::RowsFirst();
#pragma unroll
  for (int d = 0; d < kBlocksD; d += 4) {
    unsigned words[4];  // keys 0-7 and 8-15 of columns [8 d, 8 d + 16), then of the next 16
    ptx::LoadMatrixTransposed(words, lane.At(v_tile, row, d / 2));
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      unsigned low[2], high[2];  // [even or odd column]
      Dequantize(__byte_perm(words[2 * half], 0, 0x3120), low);
      Dequantize(__byte_perm(words[2 * half + 1], 0, 0x3120), high);
      ptx::Mma<kMmaType>(o[0][d + 2 * half], p, low[0], high[0]);
      ptx::Mma<kMmaType>(o[0][d + 2 * half + 1], p, low[1], high[1]);
    }
  }
}

// Descale factors of the keys of this lane's scores.
using KeyFactors = float[kBlocksN][2];
__device__ __forceinline__ void LoadKeyFactors(unsigned from, KeyFactors& factors) {
#pragma unroll
  for (int n = 0; n < kBlocksN; ++n) {
    const uint2 pair =
        ptx::LoadShared64(from + static_cast<unsigned>((8 * n + LaneIdx() % 4 * 2) * 4));
    factors[n][0] = __uint_as_float(pair.x);
    factors[n][1] = __uint_as_float(pair.y);
  }
}

// kDescaleRows: multiplies P by the factors of V before P is rounded to f16. The factors are
// divided by `unit`, a power of 2 above the largest factor so far, and multiplied by 2^15, the
// largest power of 2 in f16. Factors down to 2^-29 of the largest therefore keep the full precision
// of f16. o is scaled in the same way.
struct ValueUnit {
  float unit = 0x1p-100f;

  // Multiplies the tile's P, in s, by the tile's factors, which are at `from`.
  __device__ __forceinline__ void Apply(unsigned from, Scores& s, Output& o) {
    KeyFactors factors;
    LoadKeyFactors(from, factors);
    float largest = 0.0f;
#pragma unroll
    for (int n = 0; n < kBlocksN; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) largest = fmaxf(largest, fabsf(factors[n][e]));
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
    if (largest > unit) {  // the same in all four lanes of a row
      const unsigned above = (__float_as_uint(largest) & 0x7f800000u) + 0x800000u;
      const float raised = __uint_as_float(min(above, 0x7e800000u));
      const float rescale = unit / raised;
      unit = raised;
#pragma unroll
      for (int d = 0; d < kBlocksD; ++d)
#pragma unroll
        for (int e = 0; e < 4; ++e) o[0][d][e] *= rescale;
    }
    const float inverse = 0x1p15f / unit;
#pragma unroll
    for (int n = 0; n < kBlocksN; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) s[0][n][e] *= factors[n][e % 2] * inverse;
  }
  __device__ __forceinline__ float OutputFactor() const { return unit * 0x1p-15f; }
};

}  // namespace sm80::decode
