// sm80/decode.cu: loads the warp's rows of Q as fragments.
#pragma once
#include "sm80/decode_rows.cuh"

namespace sm80::decode {

// Factors that undo the scaling of Q (ConvertQ()), for this lane's two rows.
struct QueryUnits {
  float row_factor[2]{1.0f, 1.0f};
};

// Returns the first of the two columns in register e of fragment k. With 8-bit K a lane holds four
// adjacent columns of a row of K (decode_cache.cuh), and Q uses the same order.
__device__ __forceinline__ int QueryColumn(int k, int e) {
  const int pair = LaneIdx() % 4;
  return 16 * k + (kQuantized ? 4 * pair + e / 2 * 2 : 2 * pair + e / 2 * 8);
}

// Fragments of Q stay in registers up to dim 128. Above, they are kept in shared memory, where each
// lane reads only what it wrote.
constexpr bool kQInShared = kDim > 128;
__device__ __forceinline__ unsigned SharedQ(unsigned base) {
  return base + kShared.q + threadIdx.x / 32 * (32 * kDim) + static_cast<unsigned>(16 * LaneIdx());
}
__device__ __forceinline__ void StoreFragment(unsigned base, int k, const unsigned (&from)[4]) {
  ptx::StoreShared128(SharedQ(base) + 512 * k, __uint_as_float(from[0]), __uint_as_float(from[1]),
                      __uint_as_float(from[2]), __uint_as_float(from[3]));
}
__device__ __forceinline__ void LoadFragment(unsigned base, int k, const QFragments& q,
                                             unsigned (&to)[4]) {
  if constexpr (kQInShared) {
    const uint4 words = ptx::LoadShared128(SharedQ(base) + 512 * k);
    to[0] = words.x;
    to[1] = words.y;
    to[2] = words.z;
    to[3] = words.w;
  } else {
#pragma unroll
    for (int e = 0; e < 4; ++e) to[e] = q[k][e];
  }
}

// Converts Q from bf16 to f16. Each row is multiplied by a power of 2 that moves its largest
// element into [2^14, 2^15). Elements above 2^-28 of the largest then keep all their bits, and
// those below 2^-38 become 0. `largest`: the largest exponent field among this lane's elements of
// each row.
__device__ __forceinline__ QueryUnits ConvertQ(unsigned base, const unsigned (&largest)[2],
                                               QFragments& q) {
  QueryUnits units;
  float factor[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    unsigned exponent = largest[r];
    exponent = max(exponent, __shfl_xor_sync(~0u, exponent, 1));
    exponent = max(exponent, __shfl_xor_sync(~0u, exponent, 2));
    const unsigned of_factor = min(268 - exponent, 253u);  // exponent field, biased by 127
    factor[r] = __uint_as_float(of_factor << 23);
    units.row_factor[r] = __uint_as_float((254 - of_factor) << 23);
  }
#pragma unroll
  for (int k = 0; k < kBlocksK; ++k) {
    unsigned fragment[4];
    LoadFragment(base, k, q, fragment);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      fragment[e] = ptx::Pack<config::f16>(ptx::Low<config::bf16>(fragment[e]) * factor[e % 2],
                                           ptx::High<config::bf16>(fragment[e]) * factor[e % 2]);
    }
    if constexpr (kQInShared) {
      StoreFragment(base, k, fragment);
    } else {
#pragma unroll
      for (int e = 0; e < 4; ++e) q[k][e] = fragment[e];
    }
  }
  return units;
}

// Loads Q from global memory, once per block. Needs no barrier, because each lane loads its own
// fragments.
__device__ __forceinline__ QueryUnits LoadQ(const Arguments& a, const Block& block, unsigned base,
                                            QFragments& q) {
  const char* rows[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int in_tile = 16 * WarpM() + LaneIdx() / 4 + 8 * r;
    const Row row = RowOf(a, block, in_tile);
    const bool exists = in_tile < block.num_rows && row.i < block.seq.len_q;
    rows[r] =
        exists ? RowAddress(a.q, block.seq.idx, block.seq.first_q + row.i, row.head) : nullptr;
  }
  // The running max is taken over raw products, so a negative scale flips the sign of Q instead.
  const unsigned sign = !kScaledScores && a.negative_scale != 0 ? 0x80008000u : 0u;
  unsigned largest[2]{};
#pragma unroll
  for (int k = 0; k < kBlocksK; ++k) {
    unsigned(&fragment)[4] = q[kQInShared ? 0 : k];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int column = QueryColumn(k, e);
      const char* at = rows[e % 2] + column * kOperandBytes;
      unsigned pair = 0;
      if (config::element_access != 0) {
        const bool first = rows[e % 2] != nullptr && column < a.dim_qk;
        const bool second = rows[e % 2] != nullptr && column + 1 < a.dim_qk;
        pair = ptx::Pack<kDtype>(first ? LoadElement(at, kDtype) : 0.0f,
                                 second ? LoadElement(at + kOperandBytes, kDtype) : 0.0f);
      } else if (rows[e % 2] != nullptr && column < a.dim_qk) {
        pair = *reinterpret_cast<const unsigned*>(at);
      }
      fragment[e] = pair ^ sign;
      if constexpr (kQuantized) {
        largest[e % 2] = max(largest[e % 2], max(pair >> 7 & 0xffu, pair >> 23 & 0xffu));
      }
    }
    if constexpr (kQInShared) StoreFragment(base, k, fragment);
  }
  if constexpr (kQuantized && kDtype == config::bf16) return ConvertQ(base, largest, q);
  return {};
}

}  // namespace sm80::decode
