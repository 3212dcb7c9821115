// Operations on the scores of a warpgroup's tile between Q K^T and P V, in registers: softcap,
// ALiBi, bias, hidden keys, dropout. Layout of scores: ptx/wgmma.cuh.
#pragma once
#include "shared/dropout.cuh"
#include "shared/score.cuh"
#include "sm90/online_softmax.cuh"
#include "sm90/score_tile.cuh"
#include "sm90/tile_scheduler.cuh"

namespace sm90 {

using shared::kHasScoreMod;
using PackedP = unsigned[kTileKv / (kF8 ? 8 : 4)];

// f8: returns the descale factor of a sequence's key head.
__device__ __forceinline__ float DescaleOf(const attn::device::sm90::Descales& descales, int seq,
                                           int head_kv) {
  if (descales.data == nullptr) return 1.0f;
  return descales.data[seq * descales.stride_batch + head_kv * descales.stride_head];
}

// Returns the score of a row to which bit n of a lane's word of the mask belongs
// (forward_mask_packer.cuh). A byte has one pair (u, e) for all blocks of 16 keys; with 64 keys
// half a byte.
__device__ __forceinline__ constexpr int ScoreOfMaskBit(int n) {
  constexpr int kBlocks = kTileKv / 16;
  const int block = n % kBlocks;
  const int part = n / kBlocks;  // 128 keys: 2 u + e; 64: 2 e + u
  const int u = kBlocks == 8 ? part / 2 : part % 2;
  const int e = kBlocks == 8 ? part % 2 : part / 2;
  return 8 * block + 4 * u + e;
}

// If true, score modifiers subtract the row's max in their last operation. Not with dropout, where
// registers would spill.
inline constexpr bool kRelativeScores = kHasScoreMod && config::dropout == 0;

// Softcap without ALiBi and bias uses a shorter series for products that are small relative to the
// cap. The first tile of keys always uses the longer series: a second copy of the code would make
// the kernel larger.
inline constexpr bool kShortSeries =
    config::softcap != 0 && config::alibi == 0 && config::bias_type == config::none;

struct ScoreModifiers {
  const ForwardParams& p;
  shared::ScoreParams score;
  shared::Dropout dropout;
  float unit;    // converts scores to units of log2
  float factor;  // f8: factor of the raw products, applied before options
  int row;       // this thread's first query; the second is 8 below
  int diagonal;  // ALiBi: row + diag
  int begin[2];  // keys that they see
  int end[2];
  unsigned biases[kBiasBytes == 2 ? kTileKv / 4 : 1];
  unsigned keeps[2];  // the mask's bits of the latest tile

  __device__ __forceinline__ explicit ScoreModifiers(const ForwardParams& params) : p(params) {}

  // This thread's first column of a tile.
  __device__ __forceinline__ static int Column() { return static_cast<int>(threadIdx.x) % 4 * 2; }

  __device__ __forceinline__ void Start(const QueryTile& tile, int first_row) {
    row = first_row;
    unit = kHasScoreMod ? 1.0f : p.common.scale_log2;
    if constexpr (kF8) SetFactors(tile);
    if constexpr (kHasScoreMod) score = shared::ScoreParamsOf(p.common, tile.seq.idx, tile.head);
    if constexpr (config::alibi != 0) diagonal = static_cast<int>(row + tile.seq.diag);
    if constexpr (config::dropout != 0) {
      dropout = shared::DropoutOf(p.common, tile.seq.idx, tile.head);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if constexpr (kRowRanges) {
        const int i = row + 8 * h;
        const shared::KeyRange keys =
            i < tile.seq.len_q ? shared::VisibleKeys(p.common, tile.seq, i) : shared::KeyRange{};
        begin[h] = keys.begin;
        end[h] = keys.end;
      } else {
        begin[h] = KeyBegin(tile, row + 8 * h);
        end[h] = KeyEnd(tile, row + 8 * h);
      }
    }
  }

  // 16-bit bias: loads this thread's elements of a tile, as pairs.
  __device__ __forceinline__ void LoadBias(unsigned bias_tile) {
    using Tile = ScoreTile<2, kScoreKeys>;
    const Place place = PlaceInTile();
    const unsigned first = Tile::First(bias_tile, place.row, place.column);
#pragma unroll
    for (int i = 0; i < kTileKv / 4; ++i) {
      biases[i] = ptx::LoadShared32(Tile::Next(first, i / 2, i % 2));
    }
  }

  // The bias of score i.
  __device__ __forceinline__ float Bias(int i) const {
    const unsigned pair = biases[i / 2];
    return i % 2 == 0 ? ptx::Low<config::bias_type>(pair) : ptx::High<config::bias_type>(pair);
  }

  // Applies softcap, ALiBi and bias: turns raw products of keys from j on into scores in units of
  // log2; `relative`: minus `max`. `bias_tile`: the warpgroup's tile in shared memory.
  template <bool relative>
  __device__ __forceinline__ void Modify(int j, unsigned bias_tile, const float (&max)[2],
                                         Scores& s) const {
    if constexpr (kF8) {
      if (factor != 1.0f) {
#pragma unroll
        for (int i = 0; i < kTileKv / 2; ++i) s[i] *= factor;
      }
    }
    if constexpr (kHasScoreMod) {
      bool in_series = false;
      if constexpr (config::softcap != 0) {
        float most = 0.0f;
#pragma unroll
        for (int i = 0; i < kTileKv / 2; ++i) most = fmaxf(most, fabsf(s[i]));
        if constexpr (kShortSeries && relative) {
          if (__all_sync(~0u, !(most > p.cap_short_reach)) != 0) {
            CapInShortSeries(max, s);
            return;
          }
        }
        in_series = __all_sync(~0u, !(most > p.common.cap_reach)) != 0;
      }
      if (in_series) {
        ModifyAll<true, relative>(j, bias_tile, max, s);
      } else {
        ModifyAll<false, relative>(j, bias_tile, max, s);
      }
    }
  }

  // Sets scores of keys outside of the rows' ranges to -inf, for a tile from key j on.
  __device__ __forceinline__ void Hide(int j, Scores& s) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int limit = end[h] - j - Column();
      if constexpr (kLeftBound) {
        // Two comparisons per row instead of two per score.
        const unsigned keep = ScoresBelow(limit) & ~ScoresBelow(begin[h] - j - Column());
#pragma unroll
        for (int n = 0; n < kTileKv / 4; ++n) {
          if ((keep >> n & 1) == 0) s[n / 2 * 4 + 2 * h + n % 2] = -shared::kInfinity;
        }
      } else {
#pragma unroll
        for (int n = 0; n < kTileKv / 4; ++n) {
          if (n / 2 * 8 + n % 2 >= limit) s[n / 2 * 4 + 2 * h + n % 2] = -shared::kInfinity;
        }
      }
    }
  }

  // Sets the scores that the mask hides to -inf.
  __device__ __forceinline__ void HideByMask(unsigned mask_tile, Scores& s) const {
    if constexpr (kMaskBytes > 0) {
      using Tile = ScoreTile<1, kScoreKeys>;
      const Place place = PlaceInTile();
      const unsigned first = Tile::First(mask_tile, place.row, place.column);
#pragma unroll
      for (int i = 0; i < kTileKv / 2; i += 2) {
        const unsigned pair = ptx::LoadShared16(Tile::Next(first, i / 4, i / 2 % 2));
        if ((pair & 0xff) == 0) s[i] = -shared::kInfinity;
        if ((pair & 0xff00) == 0) s[i + 1] = -shared::kInfinity;
      }
    }
  }

  // The same with bits, in the order of forward_mask_packer.cuh: loads this thread's bits of two
  // rows.
  __device__ __forceinline__ void LoadBits(unsigned tile) {
    const Place place = PlaceInTile();
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const unsigned at = tile + (place.row + 8 * static_cast<unsigned>(h)) * kBitsRow +
                          place.column * (kTileKv / 64);
      keeps[h] = kTileKv == 128 ? ptx::LoadShared32(at) : ptx::LoadShared16(at);
    }
  }
  __device__ __forceinline__ void HideByBits(Scores& s) const {
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int n = 0; n < kTileKv / 4; ++n) {
        if ((keeps[h] >> n & 1) == 0) s[ScoreOfMaskBit(n) + 2 * h] = -shared::kInfinity;
      }
  }

  // Rounds P to the A fragments of P V. Dropped elements become 0; the epilogue applies the factor
  // of kept elements. The warp's first query must be a multiple of 16.
  __device__ __forceinline__ void Pack(int j, const Scores& s, PackedP& packed) const {
    if constexpr (kF8) {
      PackF8(s, packed);
    } else {
      Pack16(j, s, packed);
    }
  }

  // f32: sets P of dropped elements to 0.
  __device__ __forceinline__ void Drop(int j, Scores& s) const {
    if constexpr (config::dropout != 0) {
      const int first = row - static_cast<int>(threadIdx.x) % 32 / 4;
#pragma unroll
      for (int k = 0; k < kTileKv / 16; k += 2) {
        shared::DropoutBits bits[2];
        shared::GenerateBits(dropout, first, j + 16 * k, bits[0], bits[1]);
#pragma unroll
        for (int e = 0; e < 8; ++e) {
          const unsigned keep = shared::KeepFactors<false>(dropout, bits[e / 4], e / 2 % 2, e % 2);
          float* const pair = s + 8 * k + 2 * e;
          pair[0] *= shared::KeepFactor(keep, 0);
          pair[1] *= shared::KeepFactor(keep, 1);
        }
      }
    }
  }

 private:
  __device__ __forceinline__ void Pack16(int j, const Scores& s, PackedP& packed) const {
    constexpr int kPacked = sizeof(PackedP) / sizeof(unsigned);
#pragma unroll
    for (int i = 0; i < kPacked; ++i) packed[i] = ptx::Pack<kDtype>(s[2 * i], s[2 * i + 1]);
    if constexpr (config::dropout != 0) {
      const int first = row - static_cast<int>(threadIdx.x) % 32 / 4;
#pragma unroll
      for (int k = 0; k < kTileKv / 16; k += 2) {
        shared::DropoutBits bits[2];
        shared::GenerateBits(dropout, first, j + 16 * k, bits[0], bits[1]);
#pragma unroll
        for (int e = 0; e < 8; ++e) {
          if (4 * k + e >= kPacked) continue;  // an odd number of blocks of 16 keys
          unsigned& pair = packed[4 * k + e];
          const unsigned keep = shared::KeepFactors<false>(dropout, bits[e / 4], e / 2 % 2, e % 2);
          pair = shared::ApplyDropout<kDtype>(pair, keep);
        }
      }
    }
  }

  // Bit 2 n + e of the result: whether column 8 n + e of a tile is below x.
  __device__ __forceinline__ static unsigned ScoresBelow(int x) {
    const unsigned columns = static_cast<unsigned>(min(max(x, 0), kTileKv));
    const unsigned scores = columns / 8 * 2 + min(columns % 8, 2u);
    return scores < 32 ? (1u << scores) - 1 : ~0u;
  }

  // f8: folds the descales into the scale. If that makes the scale zero or negative, which the
  // softmax does not support, the products are multiplied by it first.
  __device__ __forceinline__ void SetFactors(const QueryTile& tile) {
    const int head = tile.head / p.common.heads_per_kv;
    factor =
        DescaleOf(p.descale_q, tile.seq.idx, head) * DescaleOf(p.descale_k, tile.seq.idx, head);
    if constexpr (!kHasScoreMod) {
      unit *= factor;
      factor = 1.0f;
      if (!(unit > 0.0f)) {
        factor = unit;
        unit = 1.0f;
      }
    }
  }

  // Keys are permuted within each 16: a lane has keys 2 t, 2 t + 1, 2 t + 8 and 2 t + 9 (t = lane %
  // 4) where the A fragment expects 4 t to 4 t + 3. V is transposed in the same order.
  __device__ __forceinline__ static void PackF8(const Scores& s, PackedP& packed) {
#pragma unroll
    for (int i = 0; i < kTileKv / 8; ++i) {
      const float* const p = s + i / 4 * 16 + i / 2 % 2 * 8 + i % 2 * 2;
      packed[i] = ptx::PackE4m3(p[0], p[1], p[4], p[5]);
    }
  }

  // This thread's first row among the warpgroup's 64, and its first column. Recomputed from %tid.x,
  // so that no addresses of score tiles are kept in registers through the loop over keys.
  struct Place {
    unsigned row;
    unsigned column;
  };
  __device__ __forceinline__ static Place PlaceInTile() {
    const unsigned thread = static_cast<unsigned>(ptx::RereadThreadIdx());
    return {thread / 32 % 4 * 16 + thread % 32 / 4, thread % 4 * 2};
  }

  // Softcap alone, for small products, minus the row's max: four instructions per score instead of
  // six.
  __device__ __forceinline__ void CapInShortSeries(const float (&max)[2], Scores& s) const {
#pragma unroll
    for (int i = 0; i < kTileKv / 2; ++i) {
      const float u = s[i] * s[i];
      const float series = fmaf(fmaf(p.cap_short[2], u, p.cap_short[1]), u, p.cap_short[0]);
      s[i] = fmaf(s[i], series, -max[i / 2 % 2]);
    }
  }

  template <bool in_series, bool relative>
  __device__ __forceinline__ void ModifyAll(int j, unsigned bias_tile, const float (&max)[2],
                                            Scores& s) const {
    const Place place = PlaceInTile();
#pragma unroll
    for (int i = 0; i < kTileKv / 2; i += 2) {
      const int h = i / 2 % 2;
      const int column = i / 4 * 8;
      float2 bias{};
      if constexpr (kBiasBytes == 2) {
        bias = {Bias(i), Bias(i + 1)};
      } else if constexpr (kBiasBytes == 4) {
        using Tile = ScoreTile<kBiasBytes, kScoreKeys>;
        const unsigned first = Tile::First(bias_tile, place.row, place.column);
        const uint2 pair = ptx::LoadShared64(Tile::Next(first, i / 4, h));
        bias = {__uint_as_float(pair.x), __uint_as_float(pair.y)};
      }
      float distance = 0.0f;
      if constexpr (config::alibi != 0) {
        distance = static_cast<float>(diagonal + 8 * h - j - static_cast<int>(place.column)) -
                   static_cast<float>(column);
      }
      const float addend = relative ? -max[h] : 0.0f;
      float slope;
      s[i] = shared::ModifyScore<in_series>(p.common, score, s[i], distance, bias.x, addend, slope);
      s[i + 1] = shared::ModifyScore<in_series>(p.common, score, s[i + 1], distance - 1.0f, bias.y,
                                                addend, slope);
    }
  }
};

}  // namespace sm90
