// Score options of sm90/backward.cu, applied to a consumer's registers: softcap, ALiBi, bias, mask,
// dropout. Layout of the transposed scores: ptx/wgmma.cuh.
#pragma once
#include "ptx/mma.cuh"
#include "sm90/backward_config.cuh"
#include "sm90/backward_score_terms.cuh"
#include "sm90/score_tile.cuh"

namespace sm90 {

// If true, the sign of P marks the elements that dropout drops, so that no dropout bytes are kept
// until dS is computed.
inline constexpr bool kSignedP = kDropout && !kSoftcap;

struct ScoreOptions : ScoreTerms {
  shared::DropoutBits bits[kDropout && !kSignedP ? kTileQ / 16 : 1];

  // Generates the dropout bytes of the warp's 16 keys from j. With kSignedP they are stored in the
  // signs of s, which holds P.
  __device__ __forceinline__ void GenerateBits(int i0, int j, Scores& s) {
    if constexpr (kDropout) {
#pragma unroll
      for (int k = 0; k < kTileQ / 16; k += 2) {
        shared::DropoutBits pair[2];
        shared::GenerateBitsTransposed<false>(dropout, i0 + 16 * k, j, pair[0], pair[1]);
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          if constexpr (kSignedP) {
            SignDropped(pair[n], s + 8 * (k + n));
          } else {
            bits[k + n] = pair[n];
          }
        }
      }
    }
  }

  // Keep factors (shared/dropout.cuh) of queries 8 i and 8 i + 1, and of key 8 h.
  __device__ __forceinline__ unsigned Keeps(int i, int h) const {
    return shared::KeepFactors<true>(dropout, bits[i / 2], i % 2, h);
  }

 private:
  // `p`: P of 16 queries. An element is kept if bit 13 of its keep factor (f16 1 or 0) is set.
  __device__ __forceinline__ void SignDropped(const shared::DropoutBits& draws, float* p) const {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const unsigned keeps = shared::KeepFactors<true>(dropout, draws, n / 2, n % 2);
      p[2 * n] = WithSign(p[2 * n], keeps << 18);
      p[2 * n + 1] = WithSign(p[2 * n + 1], keeps << 2);
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
