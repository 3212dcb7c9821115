// Dropout's bits: Philox4x32-10 (Salmon et al. 2011) indexed by position, see docs/semantics.md,
// "Dropout". One call serves rows {i, i+1, i+8, i+9} and columns {j, j+1, j+8, j+9}; lanes l and
// l ^ 4 of a fragment hold half of them each, so each makes the call of one of two neighbouring
// 16 x 16 blocks and they exchange the halves.
#pragma once
#include "config.cuh"
#include "ptx/math.cuh"
#include "shared/arguments.cuh"

namespace shared {

struct Dropout {
  unsigned key0, key1, offset, head, threshold;
  unsigned row, column;  // placed: of query 0 and key 0
  bool aligned;          // placed blocks of 16 are blocks of 16 here
};

__device__ __forceinline__ Dropout DropoutOf(const attn::device::Arguments& a, int b, int head) {
  const unsigned long long seed = a.seed_at != nullptr ? *a.seed_at : a.seed;
  const unsigned long long offset = a.offset_at != nullptr ? *a.offset_at : a.offset;
  Dropout d;
  d.key0 = static_cast<unsigned>(seed);
  d.key1 = static_cast<unsigned>(seed >> 32) ^ static_cast<unsigned>(offset >> 32);
  d.offset = static_cast<unsigned>(offset);
  d.head = a.origin_head + static_cast<unsigned>(b) * a.origin_heads + static_cast<unsigned>(head);
  d.threshold = a.keep_threshold;
  d.row = a.origin_q;
  d.column = a.origin_kv;
  d.aligned = (a.origin_q | a.origin_kv) % 16 == 0;
  return d;
}

__device__ __forceinline__ uint4 Philox(const Dropout& d, unsigned row, unsigned column) {
  uint4 c{row, column, d.head, d.offset};
  unsigned key0 = d.key0;
  unsigned key1 = d.key1;
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint2 x = ptx::MultiplyWide(0xD2511F53u, c.x);
    const uint2 z = ptx::MultiplyWide(0xCD9E8D57u, c.z);
    c = {z.y ^ c.y ^ key0, z.x, x.y ^ c.w ^ key1, x.x};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return c;
}

// Which of a lane's elements of a 16 x 16 block of the fragment are kept: bit 7 of a byte for those
// of row l / 4, bit 6 for those of row l / 4 + 8; byte 2 * (column is one of 8-15) + (column is
// odd).
using Flags = unsigned;

// Four bytes at once: the sign of each says that it is below the threshold. No difference borrows
// from the next byte, as signs are compared apart.
__device__ __forceinline__ unsigned Below(const Dropout& d, unsigned bytes) {
  const unsigned most = (d.threshold - 1) * 0x01010101u;
  const unsigned left = (most | 0x80808080u) - (bytes & 0x7f7f7f7fu);
  return ptx::MostOfNot(bytes, most, left);
}
// Signs of bytes, and those of `other`, which are `by` bits higher than bit 6.
__device__ __forceinline__ unsigned Join(unsigned signs, unsigned other, int by) {
  return ptx::Choose(0x80808080u, signs, other >> by);
}

// All bits of two neighbouring 16-bit elements, or of an f32 element, where they are kept: row l /
// 4
// + 8 `r`; of the block's two 16 x 8 tiles the one that is `half`, in it the column that is `odd`.
__device__ __forceinline__ unsigned PairMask(Flags flags, int half, int r) {
  return ptx::Permute(flags << r, half == 0 ? 0x9988u : 0xbbaau);
}
__device__ __forceinline__ float KeepOrZero(Flags flags, int half, int r, int odd, float value) {
  const unsigned byte = 0x8888u + 0x1111u * static_cast<unsigned>(2 * half + odd);
  return __uint_as_float(__float_as_uint(value) & ptx::Permute(flags << r, byte));
}

// Fragment of S, rows are queries from i on, columns keys from j and from j + 16 on.
__device__ __forceinline__ void DrawBlocks(const Dropout& d, int i, int j, Flags& first,
                                           Flags& second) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row = lane / 4;
  const bool odd = (row & 1) != 0;
  const uint4 bits = Philox(d, d.row + static_cast<unsigned>(i + (row & 6)),
                            d.column + static_cast<unsigned>(j + (odd ? 16 : 0) + lane % 4 * 2));
  // bits.x, bits.z are those of the even row, bits.y, bits.w of the odd one.
  const Flags even_row = Join(Below(d, bits.x), Below(d, bits.z), 1);
  const Flags odd_row = Join(Below(d, bits.y), Below(d, bits.w), 1);
  const Flags other = __shfl_xor_sync(~0u, odd ? even_row : odd_row, 4);
  first = odd ? other : even_row;
  second = odd ? odd_row : other;
}

// Fragment of the transpose of S, rows are keys from j on, columns queries from i and from i + 16
// on. The flags are put together so that they read as above, with rows for columns.
__device__ __forceinline__ void DrawBlocksTransposed(const Dropout& d, int i, int j, Flags& first,
                                                     Flags& second) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row = lane / 4;
  const bool odd = (row & 1) != 0;
  const uint4 bits = Philox(d, d.row + static_cast<unsigned>(i + (odd ? 16 : 0) + lane % 4 * 2),
                            d.column + static_cast<unsigned>(j + (row & 6)));
  // Word (query + 8, odd query) has bytes (key + 8, odd key), of which the upper two join the
  // lower.
  const auto of_key = [&](unsigned word) {
    const unsigned below = Below(d, word);
    return Join(below, below, 17);
  };
  const uint4 words{of_key(bits.x), of_key(bits.y), of_key(bits.z), of_key(bits.w)};
  const auto gather = [&](unsigned byte) {
    const unsigned pick = byte | (byte + 4) << 4;
    return __byte_perm(__byte_perm(words.x, words.y, pick), __byte_perm(words.z, words.w, pick),
                       0x5410);
  };
  const unsigned mine = odd ? 1u : 0u;
  const Flags own = gather(mine);
  const Flags other = __shfl_xor_sync(~0u, gather(1 - mine), 4);
  first = odd ? other : own;
  second = odd ? own : other;
}

// One block where placed blocks of 16 are none here, an element at a time: placed (row, column) are
// of the lane's first element; a row of the fragment is a query, or with `transposed` a key. By
// value and a call, as a structure would be kept in memory and the code in the loop.
template <bool transposed>
__device__ __noinline__ Flags DrawPlaced(unsigned key0, unsigned key1, unsigned offset,
                                         unsigned head, unsigned threshold, unsigned row,
                                         unsigned column) {
  const Dropout d{key0, key1, offset, head, threshold, 0, 0, false};
  Flags flags = 0;
#pragma unroll 1
  for (unsigned n = 0; n < 8; ++n) {
    const unsigned r = row + (n & 1) * 8;
    const unsigned c = column + (n >> 1 & 1) + (n >> 2) * 8;
    const unsigned i = transposed ? c : r;
    const unsigned j = transposed ? r : c;
    const uint4 bits = Philox(d, i & ~9u, j & ~9u);
    const unsigned even = (i & 8) != 0 ? bits.z : bits.x;
    const unsigned odd = (i & 8) != 0 ? bits.w : bits.y;
    const unsigned word = (i & 1) != 0 ? odd : even;
    const unsigned byte = word >> (8 * (((j >> 3) & 1) << 1 | (j & 1))) & 0xffu;
    if (byte < d.threshold) flags |= 0x80u >> (n & 1) << (n / 2 * 8);
  }
  return flags;
}
template <bool transposed>
__device__ __forceinline__ Flags DrawElements(const Dropout& d, int row, int column) {
  return DrawPlaced<transposed>(d.key0, d.key1, d.offset, d.head, d.threshold,
                                (transposed ? d.column : d.row) + static_cast<unsigned>(row),
                                (transposed ? d.row : d.column) + static_cast<unsigned>(column));
}

}  // namespace shared
