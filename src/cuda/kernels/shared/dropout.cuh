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
  unsigned limit;        // see Keeps()
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
  d.limit = (0x6400u + a.keep_threshold) * 0x10001u;
  d.row = a.origin_q;
  d.column = a.origin_kv;
  d.aligned = config::by_elements == 0 || (a.origin_q | a.origin_kv) % 16 == 0;
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
  const unsigned pick = (transposed ? r : half) == 0 ? 0x4140u : 0x4342u;
  return ptx::SubtractSaturated(d.limit, __byte_perm(word, 0x64646464u, pick));
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
template <bool transposed>
__device__ __forceinline__ Draws DrawElements(const Dropout& d, int i, int j) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  Draws draws{};
#pragma unroll 1
  for (int n = 0; n < 8; ++n) {
    const int word = n / 4;
    const int row = lane / 4 + 8 * (transposed ? n / 2 % 2 : word);
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
    first = DrawElements<false>(d, i, j);
    second = DrawElements<false>(d, i, j + 16);
  }
}
template <bool by_keys>
__device__ __forceinline__ void DrawTransposed(const Dropout& d, int i, int j, Draws& first,
                                               Draws& second) {
  if (config::by_elements == 0 || d.aligned) {
    DrawBlocksTransposed<by_keys>(d, i, j, first, second);
  } else {
    first = DrawElements<true>(d, i, j);
    second = DrawElements<true>(d, i + (by_keys ? 0 : 16), j + (by_keys ? 16 : 0));
  }
}

}  // namespace shared
