// Dropout's bits: Philox4x32-10 (Salmon et al. 2011) indexed by position, see docs/semantics.md,
// "Dropout". One call serves rows {i, i+1, i+8, i+9} and columns {j, j+1, j+8, j+9}; lanes l and
// l ^ 4 of a fragment hold half of them each, so each makes the call of one of two neighbouring
// 16 x 16 blocks and they exchange the halves.
#pragma once
#include "config.cuh"
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
    const unsigned high0 = __umulhi(0xD2511F53u, c.x);
    const unsigned high1 = __umulhi(0xCD9E8D57u, c.z);
    c = {high1 ^ c.y ^ key0, 0xCD9E8D57u * c.z, high0 ^ c.w ^ key1, 0xD2511F53u * c.x};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return c;
}

// Any one element: where placed blocks are not aligned. By value, as a call would keep a structure
// in memory.
__device__ __noinline__ unsigned DrawByte(unsigned key0, unsigned key1, unsigned offset,
                                          unsigned head, unsigned row, unsigned column) {
  const Dropout d{key0, key1, offset, head, 0, 0, 0, false};
  const uint4 bits = Philox(d, row & ~9u, column & ~9u);
  const unsigned even = (row & 8) != 0 ? bits.z : bits.x;
  const unsigned odd = (row & 8) != 0 ? bits.w : bits.y;
  return (((row & 1) != 0 ? odd : even) >> (8 * (((column >> 3) & 1) << 1 | (column & 1)))) & 0xffu;
}
__device__ __forceinline__ bool KeepElement(const Dropout& d, int i, int j) {
  return DrawByte(d.key0, d.key1, d.offset, d.head, d.row + static_cast<unsigned>(i),
                  d.column + static_cast<unsigned>(j)) < d.threshold;
}

// What a lane's elements of a 16 x 16 block of the fragment need: a word for row l / 4 and one for
// row l / 4 + 8, byte 2 * (column is one of 8-15) + (column is odd).
struct KeepBits {
  unsigned low, high;
};

// Fragment of S, rows are queries from i on, columns keys from j and from j + 16 on.
__device__ __forceinline__ void DrawBlocks(const Dropout& d, int i, int j, KeepBits& first,
                                           KeepBits& second) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row = lane / 4;
  const bool odd = (row & 1) != 0;
  const uint4 bits = Philox(d, d.row + static_cast<unsigned>(i + (row & 6)),
                            d.column + static_cast<unsigned>(j + (odd ? 16 : 0) + lane % 4 * 2));
  // bits.x, bits.z are those of the even row, bits.y, bits.w of the odd one.
  const unsigned low = __shfl_xor_sync(~0u, odd ? bits.x : bits.y, 4);
  const unsigned high = __shfl_xor_sync(~0u, odd ? bits.z : bits.w, 4);
  first = odd ? KeepBits{low, high} : KeepBits{bits.x, bits.z};
  second = odd ? KeepBits{bits.y, bits.w} : KeepBits{low, high};
}

// Fragment of the transpose of S, rows are keys from j on, columns queries from i and from i + 16
// on. The words are put together so that they read as above: `low` is of key l / 4, byte
// 2 * (query of 8-15) + (odd query).
__device__ __forceinline__ void DrawBlocksTransposed(const Dropout& d, int i, int j,
                                                     KeepBits& first, KeepBits& second) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row = lane / 4;
  const bool odd = (row & 1) != 0;
  const uint4 bits = Philox(d, d.row + static_cast<unsigned>(i + (odd ? 16 : 0) + lane % 4 * 2),
                            d.column + static_cast<unsigned>(j + (row & 6)));
  // Word (query + 8, odd query) has bytes (key + 8, odd key). One selector picks byte `odd` of
  // the four words, the other byte 2 + `odd`.
  const auto gather = [&](unsigned byte) {
    const unsigned pick = byte | (byte + 4) << 4;
    const unsigned pair0 = __byte_perm(bits.x, bits.y, pick);
    const unsigned pair1 = __byte_perm(bits.z, bits.w, pick);
    return __byte_perm(pair0, pair1, 0x5410);
  };
  const unsigned mine = odd ? 1u : 0u;
  const KeepBits own{gather(mine), gather(2 + mine)};
  const unsigned low = __shfl_xor_sync(~0u, gather(1 - mine), 4);
  const unsigned high = __shfl_xor_sync(~0u, gather(3 - mine), 4);
  first = odd ? KeepBits{low, high} : own;
  second = odd ? own : KeepBits{low, high};
}

// Element e of the fragment's 16 x 8 tile `half` (0 or 1) of a block.
__device__ __forceinline__ bool Keeps(const Dropout& d, const KeepBits& bits, int half, int e) {
  const unsigned word = e >= 2 ? bits.high : bits.low;
  return ((word >> (8 * (2 * half + (e & 1)))) & 0xffu) < d.threshold;
}

}  // namespace shared
