// Dropout: random bytes of Philox4x32-10 (Salmon et al. 2011), indexed by position
// (docs/semantics.md, "Dropout"). One call yields the bytes of rows {i, i+1, i+8, i+9} x columns
// {j, j+1, j+8, j+9}. In a fragment, lanes l and l ^ 4 hold half of these elements each. So each of
// the two lanes makes the call of one of two adjacent 16 x 16 blocks, and they exchange halves.
#pragma once
#include "config.cuh"
#include "ptx/math.cuh"
#include "shared/arguments.cuh"

namespace shared {

struct Dropout {
  unsigned key0, key1, offset, head;
  unsigned limit;        // f16 pair {1024 + threshold, 1024}: see KeepFactors()
  unsigned row, column;  // position of query 0 and key 0 in the larger problem
  bool aligned;          // both are multiples of 16; always true unless element_access
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
  d.aligned = config::element_access == 0 || (a.origin_q | a.origin_kv) % 16 == 0;
  return d;
}

inline constexpr unsigned kPhiloxM0 = 0xD2511F53u;
inline constexpr unsigned kPhiloxM1 = 0xCD9E8D57u;
inline constexpr unsigned kPhiloxW0 = 0x9E3779B9u;
inline constexpr unsigned kPhiloxW1 = 0xBB67AE85u;

// Computes rounds [first, 10) of Philox.
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

// The part of the first three rounds that depends on the row alone: four of their six products, a
// fifth of all products. Computed once, outside of the loop over columns.
struct PhiloxRow {
  unsigned first;    // after round 0: x without the column
  unsigned second;   // after round 1: z without a product of the column
  unsigned x, z, w;  // after round 2: likewise; w is complete
};
__device__ __forceinline__ PhiloxRow PhiloxRowOf(const Dropout& d, unsigned row) {
  const uint2 x = ptx::MultiplyWide(kPhiloxM0, row);
  const uint2 z = ptx::MultiplyWide(kPhiloxM1, d.head);
  const uint2 z1 = ptx::MultiplyWide(kPhiloxM1, x.y ^ d.offset ^ d.key1);
  const uint2 x2 = ptx::MultiplyWide(kPhiloxM0, z1.y ^ z.x ^ (d.key0 + kPhiloxW0));
  return {z.y ^ d.key0, x.x ^ (d.key1 + kPhiloxW1), z1.x ^ (d.key0 + 2 * kPhiloxW0),
          x2.y ^ (d.key1 + 2 * kPhiloxW1), x2.x};
}
// Equals Philox() for the row that PhiloxRowOf() was called with.
__device__ __forceinline__ uint4 Philox(const Dropout& d, const PhiloxRow& row, unsigned column) {
  const uint2 x = ptx::MultiplyWide(kPhiloxM0, row.first ^ column);
  const uint2 z = ptx::MultiplyWide(kPhiloxM1, row.second ^ x.y);
  return PhiloxFrom<3>(d, {row.x ^ z.y, z.x, row.z ^ x.x, row.w});
}

// A lane's random bytes of a 16 x 16 block in fragment layout.
//   S             word: row l / 4 or l / 4 + 8; byte: 2 * (column is in 8-15) + (column is odd)
//   S transposed  word: columns 0-7 or 8-15; byte: 2 * (row is l / 4 + 8) + (column is odd)
struct DropoutBits {
  unsigned words[2];
};

// Returns the keep factors, f16 1 (kept) or 0, of two adjacent elements of the 16 x 8 tile `half`,
// in row l / 4 + 8 r. Inserting a byte into the bits of f16 1024 gives 1024 + byte. 1024 +
// threshold minus that, saturated, is 1 or 0. Two bytes take one integer and one float instruction.
// Comparisons took 4 integer instructions, and Philox already saturates the integer unit.
template <bool transposed>
__device__ __forceinline__ unsigned KeepFactors(const Dropout& d, const DropoutBits& draws,
                                                int half, int r) {
  const unsigned word = draws.words[transposed ? half : r];
  const unsigned pick = (transposed ? r : half) == 0 ? 0x7170u : 0x7372u;
  return ptx::SubtractSaturated(d.limit, __byte_perm(word, d.limit, pick));
}

// Multiplies a pair of P by its KeepFactors(). The bits of f16 1, read as bf16, are 2^-7, so the
// final result must be multiplied by kKeptScale.
template <int dtype>
__device__ __forceinline__ unsigned ApplyDropout(unsigned pair, unsigned keeps) {
  return ptx::MultiplyPair<dtype>(pair, keeps);
}
template <int dtype>
inline constexpr float kKeptScale = dtype == config::bf16 ? 128.0f : 1.0f;

// Returns 1 or 0 for one of the two elements.
__device__ __forceinline__ float KeepFactor(unsigned keeps, int odd) {
  return odd == 0 ? ptx::Low<config::f16>(keeps) : ptx::High<config::f16>(keeps);
}

// Generates the bytes of two blocks of S: `first` begins at (query i, key j), `second` at key j +
// 16.
__device__ __forceinline__ void GenerateBlocks(const Dropout& d, int i, int j, DropoutBits& first,
                                               DropoutBits& second) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row = lane / 4;
  const bool odd = (row & 1) != 0;
  const uint4 bits = Philox(d, d.row + static_cast<unsigned>(i + (row & 6)),
                            d.column + static_cast<unsigned>(j + (odd ? 16 : 0) + lane % 4 * 2));
  // bits.x and bits.z belong to the even row, bits.y and bits.w to the odd row.
  const unsigned low = __shfl_xor_sync(~0u, odd ? bits.x : bits.y, 4);
  const unsigned high = __shfl_xor_sync(~0u, odd ? bits.z : bits.w, 4);
  first = {odd ? low : bits.x, odd ? high : bits.z};
  second = {odd ? bits.y : low, odd ? bits.w : high};
}

// Generates the bytes of two blocks of S transposed: `first` begins at (key j, query i), `second`
// 16 keys (by_keys) or 16 queries later.
template <bool by_keys>
__device__ __forceinline__ void GenerateBlocksTransposed(const Dropout& d, int i, int j,
                                                         DropoutBits& first, DropoutBits& second) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row = lane / 4;
  const bool odd = (row & 1) != 0;
  const int next = odd ? 16 : 0;
  const uint4 bits =
      Philox(d, d.row + static_cast<unsigned>(i + (by_keys ? 0 : next) + lane % 4 * 2),
             d.column + static_cast<unsigned>(j + (by_keys ? next : 0) + (row & 6)));
  // A word (query + 0 or 8, even or odd query) has bytes (key + 0 or 8, even or odd key). These
  // selectors pick the bytes of the even or of the odd key.
  const unsigned own_bytes = odd ? 0x7351u : 0x6240u;
  const unsigned partner_bytes = odd ? 0x6240u : 0x7351u;
  const unsigned low = __shfl_xor_sync(~0u, __byte_perm(bits.x, bits.y, partner_bytes), 4);
  const unsigned high = __shfl_xor_sync(~0u, __byte_perm(bits.z, bits.w, partner_bytes), 4);
  const DropoutBits own{__byte_perm(bits.x, bits.y, own_bytes),
                        __byte_perm(bits.z, bits.w, own_bytes)};
  first = odd ? DropoutBits{low, high} : own;
  second = odd ? own : DropoutBits{low, high};
}

// Returns the byte of one element, by its position. Not inlined, because a loop would contain many
// copies.
__device__ __noinline__ unsigned GenerateElement(unsigned key0, unsigned key1, unsigned offset,
                                                 unsigned head, unsigned i, unsigned j) {
  const Dropout d{key0, key1, offset, head, 0, 0, 0, false};
  const uint4 bits = Philox(d, i & ~9u, j & ~9u);
  const unsigned even = (i & 8) != 0 ? bits.z : bits.x;
  const unsigned odd = (i & 8) != 0 ? bits.w : bits.y;
  const unsigned word = (i & 1) != 0 ? odd : even;
  return word >> (8 * (((j >> 3) & 1) << 1 | (j & 1))) & 0xffu;
}

// Generates one block of S, or of S transposed, element by element: for positions that are not
// multiples of 16. `first`: this lane's first row.
template <bool transposed>
__device__ __forceinline__ DropoutBits GenerateElements(const Dropout& d, int i, int j, int first) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  DropoutBits draws{};
#pragma unroll 1
  for (int n = 0; n < 8; ++n) {
    const int word = n / 4;
    const int row = first + 8 * (transposed ? n / 2 % 2 : word);
    const int column = lane % 4 * 2 + 8 * (transposed ? word : n / 2 % 2) + n % 2;
    const unsigned byte =
        GenerateElement(d.key0, d.key1, d.offset, d.head,
                        d.row + static_cast<unsigned>(i + (transposed ? column : row)),
                        d.column + static_cast<unsigned>(j + (transposed ? row : column)))
        << (n % 4 * 8);
    (word == 0 ? draws.words[0] : draws.words[1]) |= byte;
  }
  return draws;
}

// Generates two blocks at any position.
__device__ __forceinline__ void GenerateBits(const Dropout& d, int i, int j, DropoutBits& first,
                                             DropoutBits& second) {
  if (config::element_access == 0 || d.aligned) {
    GenerateBlocks(d, i, j, first, second);
  } else {
    const int row = static_cast<int>(threadIdx.x) % 32 / 4;
    first = GenerateElements<false>(d, i, j, row);
    second = GenerateElements<false>(d, i, j + 16, row);
  }
}
template <bool by_keys>
__device__ __forceinline__ void GenerateBitsTransposed(const Dropout& d, int i, int j,
                                                       DropoutBits& first, DropoutBits& second) {
  if (config::element_access == 0 || d.aligned) {
    GenerateBlocksTransposed<by_keys>(d, i, j, first, second);
  } else {
    const int row = static_cast<int>(threadIdx.x) % 32 / 4;
    first = GenerateElements<true>(d, i, j, row);
    second = GenerateElements<true>(d, i + (by_keys ? 0 : 16), j + (by_keys ? 16 : 0), row);
  }
}

// Generates two blocks of S, `even` and `odd`, of keys [j, j + 16) and of 32 queries with bits 0
// and 4 of their index swapped. One call then covers a lane's four rows, so lanes exchange nothing.
// `first`: this lane's first row of `even`.
__device__ __forceinline__ void GenerateRowPairs(const Dropout& d, const PhiloxRow& row, int i,
                                                 int j, int first, DropoutBits& even,
                                                 DropoutBits& odd) {
  if (config::element_access == 0 || d.aligned) {
    const int column = j + static_cast<int>(threadIdx.x) % 4 * 2;
    const uint4 bits = Philox(d, row, d.column + static_cast<unsigned>(column));
    even = {bits.x, bits.z};
    odd = {bits.y, bits.w};
  } else {
    even = GenerateElements<false>(d, i, j, first);
    odd = GenerateElements<false>(d, i, j, first + 1);
  }
}

}  // namespace shared
