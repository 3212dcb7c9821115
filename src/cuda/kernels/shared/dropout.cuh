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
  unsigned key0, key1, offset, head;
  unsigned limit;        // 1024 + threshold as an f16, beside 1024: see Keeps()
  unsigned row, column;  // placed: of query 0 and key 0
  bool aligned;          // placed blocks of 16 are blocks of 16 here; always but with by_elements
};

__device__ __forceinline__ Dropout DropoutOf(const attn::device::Arguments& a, int b, int head) {
  const unsigned long long seed = a.seed_at != nullptr ? *a.seed_at : a.seed;
  const unsigned long long offset = a.offset_at != nullptr ? *a.offset_at : a.offset;
  Dropout d;
  d.key0 = static_cast<unsigned>(seed);
  d.key1 = static_cast<unsigned>(seed >> 32) ^ static_cast<unsigned>(offset >> 32);
  d.offset = static_cast<unsigned>(offset);
  d.head = a.origin_head + static_cast<unsigned>(b) * a.origin_heads + static_cast<unsigned>(head);
  d.limit = 0x64006400u + a.keep_threshold;
  d.row = a.origin_q;
  d.column = a.origin_kv;
  d.aligned = config::by_elements == 0 || (a.origin_q | a.origin_kv) % 16 == 0;
  return d;
}

inline constexpr unsigned kPhiloxM0 = 0xD2511F53u;
inline constexpr unsigned kPhiloxM1 = 0xCD9E8D57u;
inline constexpr unsigned kPhiloxW0 = 0x9E3779B9u;
inline constexpr unsigned kPhiloxW1 = 0xBB67AE85u;

// Rounds from `first` on, counted from 0.
template <int first>
__device__ __forceinline__ uint4 PhiloxFrom(const Dropout& d, uint4 c) {
#pragma unroll
  for (int round = first; round < 10; ++round) {
    const uint2 x = ptx::MultiplyWide(kPhiloxM0, c.x);
    const uint2 z = ptx::MultiplyWide(kPhiloxM1, c.z);
    const unsigned n = static_cast<unsigned>(round);
    c = {z.y ^ c.y ^ (d.key0 + n * kPhiloxW0), z.x, x.y ^ c.w ^ (d.key1 + n * kPhiloxW1), x.x};
  }
  return c;
}

__device__ __forceinline__ uint4 Philox(const Dropout& d, unsigned row, unsigned column) {
  return PhiloxFrom<0>(d, {row, column, d.head, d.offset});
}

// What of the first three rounds is the row's alone, four of their six products: a fifth of the
// work where rows stay and columns go on.
struct PhiloxRow {
  unsigned first;    // behind round 0: x but for the column
  unsigned second;   // behind round 1: z but for a product that has the column
  unsigned x, z, w;  // behind round 2: likewise; w is whole
};
__device__ __forceinline__ PhiloxRow PhiloxRowOf(const Dropout& d, unsigned row) {
  const uint2 x = ptx::MultiplyWide(kPhiloxM0, row);
  const uint2 z = ptx::MultiplyWide(kPhiloxM1, d.head);
  const uint2 z1 = ptx::MultiplyWide(kPhiloxM1, x.y ^ d.offset ^ d.key1);
  const uint2 x2 = ptx::MultiplyWide(kPhiloxM0, z1.y ^ z.x ^ (d.key0 + kPhiloxW0));
  return {z.y ^ d.key0, x.x ^ (d.key1 + kPhiloxW1), z1.x ^ (d.key0 + 2 * kPhiloxW0),
          x2.y ^ (d.key1 + 2 * kPhiloxW1), x2.x};
}
// As Philox() of that row.
__device__ __forceinline__ uint4 Philox(const Dropout& d, const PhiloxRow& row, unsigned column) {
  const uint2 x = ptx::MultiplyWide(kPhiloxM0, row.first ^ column);
  const uint2 z = ptx::MultiplyWide(kPhiloxM1, row.second ^ x.y);
  return PhiloxFrom<3>(d, {row.x ^ z.y, z.x, row.z ^ x.x, row.w});
}

// A lane's bytes of a 16 x 16 block of a fragment. Of S: words of the rows l / 4 and l / 4 + 8,
// byte 2 * (column is one of 8-15) + (column is odd). Of the transpose of S: words of the columns
// 0-7 and 8-15, byte 2 * (row is l / 4 + 8) + (column is odd).
struct Draws {
  unsigned words[2];
};

// Of two neighbours, in the fragment's 16 x 8 tile `half` and of row l / 4 + 8 `r`: 1 as f16 where
// the element is kept, else 0. A byte is put behind that of 1024, which makes the f16 1024 + byte;
// 1024 + threshold less that, saturated, is 1 or 0. Two bytes cost an instruction of the integer
// unit and one of the f32 unit, where masks by comparing took 4 of the former, of which Philox
// needs most.
template <bool transposed>
__device__ __forceinline__ unsigned Keeps(const Dropout& d, const Draws& draws, int half, int r) {
  const unsigned word = draws.words[transposed ? half : r];
  const unsigned pick = (transposed ? r : half) == 0 ? 0x7170u : 0x7372u;
  return ptx::SubtractSaturated(d.limit, __byte_perm(word, d.limit, pick));
}

// A pair of P times its Keeps(). To bf16 the bits of f16's 1 are 2^-7: what is made of the pairs
// grows by kDropped at the end.
template <int dtype>
__device__ __forceinline__ unsigned DropPair(unsigned pair, unsigned keeps) {
  return ptx::MultiplyPair<dtype>(pair, keeps);
}
template <int dtype>
inline constexpr float kDropped = dtype == config::bf16 ? 128.0f : 1.0f;

// 1 or 0 for one of the neighbours.
__device__ __forceinline__ float KeepsOne(unsigned keeps, int odd) {
  return odd == 0 ? ptx::Low<config::f16>(keeps) : ptx::High<config::f16>(keeps);
}

// Fragments of S: `first` has queries from i on for rows and keys from j on for columns, `second`
// is 16 keys on.
__device__ __forceinline__ void DrawBlocks(const Dropout& d, int i, int j, Draws& first,
                                           Draws& second) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row = lane / 4;
  const bool odd = (row & 1) != 0;
  const uint4 bits = Philox(d, d.row + static_cast<unsigned>(i + (row & 6)),
                            d.column + static_cast<unsigned>(j + (odd ? 16 : 0) + lane % 4 * 2));
  // bits.x, bits.z are those of the even row, bits.y, bits.w of the odd one.
  const unsigned low = __shfl_xor_sync(~0u, odd ? bits.x : bits.y, 4);
  const unsigned high = __shfl_xor_sync(~0u, odd ? bits.z : bits.w, 4);
  first = {odd ? low : bits.x, odd ? high : bits.z};
  second = {odd ? bits.y : low, odd ? bits.w : high};
}

// Fragments of the transpose of S: `first` has keys from j on for rows and queries from i on for
// columns, `second` is 16 queries on, or keys.
template <bool by_keys>
__device__ __forceinline__ void DrawBlocksTransposed(const Dropout& d, int i, int j, Draws& first,
                                                     Draws& second) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row = lane / 4;
  const bool odd = (row & 1) != 0;
  const int next = odd ? 16 : 0;
  const uint4 bits =
      Philox(d, d.row + static_cast<unsigned>(i + (by_keys ? 0 : next) + lane % 4 * 2),
             d.column + static_cast<unsigned>(j + (by_keys ? next : 0) + (row & 6)));
  // Word (query + 8, odd query) has bytes (key + 8, odd key): those of an even key, of an odd one.
  const unsigned mine = odd ? 0x7351u : 0x6240u;
  const unsigned others = odd ? 0x6240u : 0x7351u;
  const unsigned low = __shfl_xor_sync(~0u, __byte_perm(bits.x, bits.y, others), 4);
  const unsigned high = __shfl_xor_sync(~0u, __byte_perm(bits.z, bits.w, others), 4);
  const Draws own{__byte_perm(bits.x, bits.y, mine), __byte_perm(bits.z, bits.w, mine)};
  first = odd ? Draws{low, high} : own;
  second = odd ? own : Draws{low, high};
}

// The byte of one element, placed. By value and a call, as its code would be many times in a loop.
__device__ __noinline__ unsigned DrawElement(unsigned key0, unsigned key1, unsigned offset,
                                             unsigned head, unsigned i, unsigned j) {
  const Dropout d{key0, key1, offset, head, 0, 0, 0, false};
  const uint4 bits = Philox(d, i & ~9u, j & ~9u);
  const unsigned even = (i & 8) != 0 ? bits.z : bits.x;
  const unsigned odd = (i & 8) != 0 ? bits.w : bits.y;
  const unsigned word = (i & 1) != 0 ? odd : even;
  return word >> (8 * (((j >> 3) & 1) << 1 | (j & 1))) & 0xffu;
}

// One block, of S or `transposed`, where placed blocks of 16 are none here: an element at a time.
// `first`: this lane's first row.
template <bool transposed>
__device__ __forceinline__ Draws DrawElements(const Dropout& d, int i, int j, int first) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  Draws draws{};
#pragma unroll 1
  for (int n = 0; n < 8; ++n) {
    const int word = n / 4;
    const int row = first + 8 * (transposed ? n / 2 % 2 : word);
    const int column = lane % 4 * 2 + 8 * (transposed ? word : n / 2 % 2) + n % 2;
    const unsigned byte =
        DrawElement(d.key0, d.key1, d.offset, d.head,
                    d.row + static_cast<unsigned>(i + (transposed ? column : row)),
                    d.column + static_cast<unsigned>(j + (transposed ? row : column)))
        << (n % 4 * 8);
    (word == 0 ? draws.words[0] : draws.words[1]) |= byte;
  }
  return draws;
}

// Both, wherever blocks are placed.
__device__ __forceinline__ void Draw(const Dropout& d, int i, int j, Draws& first, Draws& second) {
  if (config::by_elements == 0 || d.aligned) {
    DrawBlocks(d, i, j, first, second);
  } else {
    const int row = static_cast<int>(threadIdx.x) % 32 / 4;
    first = DrawElements<false>(d, i, j, row);
    second = DrawElements<false>(d, i, j + 16, row);
  }
}
template <bool by_keys>
__device__ __forceinline__ void DrawTransposed(const Dropout& d, int i, int j, Draws& first,
                                               Draws& second) {
  if (config::by_elements == 0 || d.aligned) {
    DrawBlocksTransposed<by_keys>(d, i, j, first, second);
  } else {
    const int row = static_cast<int>(threadIdx.x) % 32 / 4;
    first = DrawElements<true>(d, i, j, row);
    second = DrawElements<true>(d, i + (by_keys ? 0 : 16), j + (by_keys ? 16 : 0), row);
  }
}

// Of S, the fragments `even` and `odd` of 32 queries that have change places in bits 0 and 4 of
// their number, and 16 keys from j on: rows l / 4 and l / 4 + 8 of them are those of one call, so
// that nothing is exchanged. `first`: this lane's first row, of `even`.
__device__ __forceinline__ void DrawRows(const Dropout& d, const PhiloxRow& row, int i, int j,
                                         int first, Draws& even, Draws& odd) {
  if (config::by_elements == 0 || d.aligned) {
    const int column = j + static_cast<int>(threadIdx.x) % 4 * 2;
    const uint4 bits = Philox(d, row, d.column + static_cast<unsigned>(column));
    even = {bits.x, bits.z};
    odd = {bits.y, bits.w};
  } else {
    even = DrawElements<false>(d, i, j, first);
    odd = DrawElements<false>(d, i, j, first + 1);
  }
}

}  // namespace shared
