// Score options of sm90/backward.cu, applied to a consumer's registers: softcap, ALiBi, bias, mask,
// dropout. Layout of the transposed scores: ptx/wgmma.cuh.
#pragma once
#include "ptx/mma.cuh"
#include "sm90/backward_config.cuh"
#include "sm90/backward_score_terms.cuh"
#include "sm90/score_tile.cuh"

namespace sm90 {

// If true, the sign of P marks the elements that dropout drops, so that no dropout bits are kept
// until dS is computed.
inline constexpr bool kSignedP = kDropout && !kSoftcap;

// One bit for each element of a lane, set if dropout drops it: two registers instead of a byte per
// element, so that the bits can be drawn before S is there. The element of query 8 i + 2 (lane % 4)
// + odd and key lane / 4 + 8 h is bit DropBit(i, h, odd) of word i / 2 % 2.
struct DropBits {
  unsigned words[2];
};
__device__ __forceinline__ constexpr int DropBit(int i, int h, int odd) {
  return i / 4 * 4 + i % 2 * 2 + odd + 16 * h;
}

// Compares two bytes of `draws`, of keys 0 and 8, with the threshold, and adds the results to
// `bits`, as bits `bit` and bit + 16. `selector` picks the bytes. `addend`: 256 - threshold, in
// both halves; a byte's sum has bit 8 if the byte is dropped.
__device__ __forceinline__ void AddDropBits(unsigned draws, unsigned selector, unsigned addend,
                                            int bit, unsigned& bits) {
  const unsigned sums = __byte_perm(draws, 0, selector) + addend;
  const unsigned moved = bit <= 8 ? sums >> (8 - bit) : sums << (bit - 8);
  bits |= moved & (0x10001u << bit);
}
__device__ __forceinline__ void AddDropBits(const uint4& draws, unsigned selector, unsigned addend,
                                            int bit, unsigned& bits) {
  AddDropBits(draws.x, selector, addend, bit, bits);
  AddDropBits(draws.y, selector, addend, bit + 1, bits);
  AddDropBits(draws.z, selector, addend, bit + 2, bits);
  AddDropBits(draws.w, selector, addend, bit + 3, bits);
}

// Draws the bits of the tile of queries from i0 and the warp's 16 keys from j. The lane draws every
// second block of 16 x 16 for itself and for lane ^ 4, and exchanges a word with it.
__device__ __forceinline__ DropBits DrawDropBits(const shared::Dropout& d, unsigned threshold,
                                                 int i0, int j) {
  constexpr unsigned kEvenKeys = 0x4240;  // bytes 0 and 2
  constexpr unsigned kOddKeys = 0x4341;   // bytes 1 and 3
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const bool odd = (lane / 4 & 1) != 0;
  const unsigned addend = (256 - threshold) * 0x10001u;
  const unsigned row = d.row + static_cast<unsigned>(i0 + (odd ? 16 : 0) + lane % 4 * 2);
  const unsigned column = d.column + static_cast<unsigned>(j + (lane / 4 & 6));
  unsigned own = 0;
  unsigned partner = 0;
#pragma unroll
  for (int k = 0; k < kTileQ / 32; ++k) {
    const uint4 draws = shared::Philox(d, row + 32 * k, column);
    AddDropBits(draws, odd ? kOddKeys : kEvenKeys, addend, 4 * k, own);
    AddDropBits(draws, odd ? kEvenKeys : kOddKeys, addend, 4 * k, partner);
  }
  partner = __shfl_xor_sync(~0u, partner, 4);
  return odd ? DropBits{{partner, own}} : DropBits{{own, partner}};
}

struct ScoreOptions : ScoreTerms {
  DropBits drops;

  // Whether dropout drops query 8 i + odd and key 8 h.
  __device__ __forceinline__ bool Drops(int i, int h, int odd) const {
    return (drops.words[i / 2 % 2] & (1u << DropBit(i, h, odd))) != 0;
  }
  // With kSignedP: sets the signs of dropped elements of P.
  __device__ __forceinline__ void MarkDropped(Scores& p) const {
    if constexpr (kSignedP) {
#pragma unroll
      for (int n = 0; n < kTileQ / 2; ++n) {
        const int i = n / 4;
        const unsigned bit = drops.words[i / 2 % 2] << (31 - DropBit(i, n / 2 % 2, n % 2));
        p[n] = __uint_as_float(__float_as_uint(p[n]) | (bit & 0x80000000u));
      }
    }
  }
};

// Reads the bias of a warp's 16 keys. `tile`: the block's tile in shared memory.
struct BiasReader {
  using Layout = ScoreTile<kBiasBytes == 0 ? 2 : kBiasBytes, kTileKv>;
  unsigned tile;
  int key;  // the warp's first key, in the tile

  // Loads the bias of 16 queries from 16 k on, in the order of scores.
  __device__ __forceinline__ void Load(int k, float (&bias)[8]) const {
    const int lane = ptx::RereadThreadIdx() % 32;
    if constexpr (kBiasBytes > 0 && kBiasRow) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float one = LoadOne(key + lane / 4 + 8 * h);
        bias[2 * h] = bias[2 * h + 1] = bias[2 * h + 4] = bias[2 * h + 5] = one;
      }
      return;
    }
    const unsigned at =
        tile + static_cast<unsigned>(k / 4 * Layout::kBytes + k % 4 * 16 * Layout::kRowBytes);
    if constexpr (config::bias_type == config::f32) {
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        bias[n] = __uint_as_float(ptx::LoadShared32(
            at + Layout::At(n / 4 * 8 + lane % 4 * 2 + n % 2, key + lane / 4 + n / 2 % 2 * 8)));
      }
    } else if constexpr (kBiasBytes > 0) {
      // Four 8 x 8 matrices, (queries 0-7, 8-15) x (keys 0-7, 8-15); ldmatrix.trans transposes
      // them.
      unsigned pairs[4];
      ptx::LoadMatrixTransposed(pairs,
                                at + Layout::At(lane % 8 + lane / 16 * 8, key + lane / 8 % 2 * 8));
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        bias[2 * n] = ptx::Low<config::bias_type>(pairs[n]);
        bias[2 * n + 1] = ptx::High<config::bias_type>(pairs[n]);
      }
    }
  }

 private:
  // Bias of one key, if the bias broadcasts queries.
  __device__ __forceinline__ float LoadOne(int column) const {
    const unsigned at = tile + ScoreRow<kBiasBytes>::At(0, column);
    if constexpr (config::bias_type == config::f32) return __uint_as_float(ptx::LoadShared32(at));
    return ptx::Low<config::bias_type>(ptx::LoadShared16(at));
  }
};

// The same for the mask.
struct MaskReader {
  using Layout = ScoreTile<1, kTileKv>;
  unsigned even;  // address of this lane's first key, for even or odd queries
  unsigned odd;
  unsigned keeps_row[2];  // if the mask broadcasts queries: ~0 or 0 for each of this lane's keys

  __device__ __forceinline__ MaskReader(unsigned tile, int key) {
    const int lane = ptx::RereadThreadIdx() % 32;
    if constexpr (kMaskRow) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const unsigned at = tile + ScoreRow<1>::At(0, key + lane / 4 + 8 * h);
        keeps_row[h] = ptx::LoadShared8(at) == 0 ? 0 : ~0u;
      }
      return;
    }
    even = tile + Layout::At(lane % 4 * 2, key + lane / 4);
    odd = tile + Layout::At(lane % 4 * 2 + 1, key + lane / 4);
  }
  // Sets x to `hidden` if the mask hides key 8 h from query 8 i + `query` (0 or 1).
  __device__ __forceinline__ void Hide(int i, int h, int query, float hidden, float& x) const {
    if constexpr (kMaskRow) {
      // Selects by bits: the compiler turns conditions that many elements share into branches,
      // which serialize wgmma.
      x = __uint_as_float((__float_as_uint(x) & keeps_row[h]) |
                          (__float_as_uint(hidden) & ~keeps_row[h]));
      return;
    }
    const int offset = i / 8 * Layout::kBytes + i % 8 * 8 * Layout::kRowBytes + 8 * h;
    if (ptx::LoadShared8((query == 0 ? even : odd) + static_cast<unsigned>(offset)) == 0)
      x = hidden;
  }
};

}  // namespace sm90
