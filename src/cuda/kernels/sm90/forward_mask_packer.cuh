// A mask without a bias: three warps of the producer warpgroup turn its bytes into bits in the
// order of a consumer's scores, so that a lane reads its bits of a tile with one load per row. One
// warp loads the bytes by TMA, two pack them. They run ahead of K as far as their own rings allow,
// because the mask is most of what a tile reads from memory.
//
// A raw stage is a tile [64][tile_kv] of one warpgroup (score_tile.cuh). The bits of a row are four
// words of tile_kv / 4 bits. Word t has keys 16 c + 8 u + 2 t + e, which lane % 4 = t holds: key c
// is bit c of byte 2 u + e, or with 64 keys bit 4 u + c of byte e.
#pragma once
#include "ptx/math.cuh"
#include "ptx/warpgroup.cuh"
#include "sm90/forward_producer.cuh"

namespace sm90 {

struct MaskHelper {
  const ForwardParams& p;
  unsigned base;  // shared memory
  ForwardBarriers barriers;
  int warp;  // index within this role
  int lane;
  int raw = 0;        // the next raw stage
  int raw_phase = 0;  // and its phase

  __device__ __forceinline__ MaskHelper(const ForwardParams& params, unsigned memory, int warp_idx)
      : p(params),
        base(memory),
        barriers(memory),
        warp(warp_idx),
        lane(static_cast<int>(threadIdx.x) % 32) {}

  // One lane arrives for the warp, after the reads of all its lanes.
  __device__ __forceinline__ void Release(int barrier) const {
    __syncwarp();
    if (lane == 0) ptx::BarrierArrive(barriers.At(barrier));
  }
  // See Producer::WaitTogether() in forward_producer.cuh.
  __device__ __forceinline__ void WaitTogether(int barrier, int phase) const {
    barriers.Wait(barrier, phase);
    __syncwarp();
  }
  __device__ __forceinline__ unsigned RawTile() const {
    return base + kShared.raw_mask + static_cast<unsigned>(raw * kRawMaskBytes);
  }
  __device__ __forceinline__ void NextRaw() {
    if (++raw == kRawStages) {
      raw = 0;
      raw_phase ^= 1;
    }
  }
};

struct MaskLoader : MaskHelper {
  using MaskHelper::MaskHelper;

  __device__ __forceinline__ void Run(const QueryTile& tile) {
    const ScorePlace place = MaskPlace(p.common, tile.head, tile.seq.idx);
#pragma unroll 1
    for (int i = 0; i < tile.kv_count; ++i) {
#pragma unroll 1
      for (int w = 0; w < kWarpgroups; ++w) {
        WaitTogether(ForwardBarriers::kRawFree + raw, raw_phase + 1);
        if (lane == 0) {
          const unsigned ready = barriers.At(ForwardBarriers::kRawReady + raw);
          ptx::BarrierExpect(ready, kRawMaskBytes);
          LoadScoreTile<1>(tile, i, w, &p.mask, place, RawTile(), ready);
        }
        NextRaw();
      }
    }
  }
};

struct MaskPacker : MaskHelper {
  using MaskHelper::MaskHelper;
  int kv = 0;  // tiles of keys packed for earlier tiles of queries

  __device__ __forceinline__ void Run(const QueryTile& tile) {
#pragma unroll 1
    for (int i = 0; i < tile.kv_count; ++i) {
      const int stage = (kv + i) % kBitsStages;
      WaitTogether(ForwardBarriers::kBitsFree + stage, (kv + i) / kBitsStages + 1);
#pragma unroll 1
      for (int w = 0; w < kWarpgroups; ++w) {
        WaitTogether(ForwardBarriers::kRawReady + raw, raw_phase);
        PackRow(RawTile(),
                base + kShared.bits + static_cast<unsigned>(stage * kBitsBytes + w * 64 * kBitsRow),
                32 * warp + lane);
        ptx::BarrierArrive(barriers.At(ForwardBarriers::kRawFree + raw));
        NextRaw();
      }
      ptx::BarrierArrive(barriers.At(ForwardBarriers::kBitsReady + stage));
    }
    kv += tile.kv_count;
  }

 private:
  // Turns each nonzero byte into 1.
  __device__ __forceinline__ static unsigned Ones(unsigned x) {
    return ((((x & 0x7f7f7f7fu) + 0x7f7f7f7fu) | x) & 0x80808080u) >> 7;
  }

  // Gathers a row's bits: bit c of a byte of bits[n] is that byte of the n-th word of the row's
  // 16-byte chunk c. `any`: the bitwise or of all bytes. If there are bytes other than 0 and 1,
  // `normalize` is required.
  template <bool normalize>
  __device__ __forceinline__ static void Gather(unsigned from, int row, unsigned (&bits)[4],
                                                unsigned& any) {
    any = 0;
#pragma unroll
    for (int n = 0; n < 4; ++n) bits[n] = 0;
    // Four loads in flight; more exceed the registers of a producer.
    constexpr int kAtOnce = normalize ? 1 : 4;
#pragma unroll kAtOnce
    for (int c = kTileKv / 16 - 1; c >= 0; --c) {
      const uint4 keys = ptx::LoadShared128(from + ScoreTile<1, kScoreKeys>::At(row, 16 * c));
      const unsigned words[] = {keys.x, keys.y, keys.z, keys.w};
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        bits[n] = 2 * bits[n] + (normalize ? Ones(words[n]) : words[n]);
      }
      any |= keys.x | keys.y;
      any |= keys.z | keys.w;
    }
  }

  __device__ __forceinline__ static void PackRow(unsigned from, unsigned to, int row) {
    unsigned bits[4];
    unsigned any;
    Gather<false>(from, row, bits, any);
    if (__any_sync(~0u, (any & 0xfefefefeu) != 0) != 0) Gather<true>(from, row, bits, any);
    const unsigned at = to + static_cast<unsigned>(row * kBitsRow);
    unsigned words[4];
    words[0] = ptx::PermuteBytes(bits[0], bits[2], 0x5410);
    words[1] = ptx::PermuteBytes(bits[0], bits[2], 0x7632);
    words[2] = ptx::PermuteBytes(bits[1], bits[3], 0x5410);
    words[3] = ptx::PermuteBytes(bits[1], bits[3], 0x7632);
    if constexpr (kTileKv == 128) {
      ptx::StoreShared128(at, __uint_as_float(words[0]), __uint_as_float(words[1]),
                          __uint_as_float(words[2]), __uint_as_float(words[3]));
    } else {
      // Each byte has four bits.
#pragma unroll
      for (int n = 0; n < 4; ++n) words[n] |= words[n] >> 12;
      ptx::StoreShared64(at, __uint_as_float(ptx::PermuteBytes(words[0], words[1], 0x5410)),
                         __uint_as_float(ptx::PermuteBytes(words[2], words[3], 0x5410)));
    }
  }
};

}  // namespace sm90
