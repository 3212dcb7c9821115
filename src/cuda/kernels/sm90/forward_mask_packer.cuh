// A mask without a bias: three warps of the producer warpgroup turn its bytes, as TMA wrote them,
// into bits in the order of a consumer's scores, so that a lane reads its bits of a tile by one
// load per row.
//
// Raw stages are tiles [64][tile_kv] of one warpgroup (score_tile.cuh). Bits of a row: four words
// of tile_kv / 4 bits; bit 2 j + e of word t is key 8 j + 2 t + e, which lane % 4 = t holds.
#pragma once
#include "ptx/math.cuh"
#include "ptx/warpgroup.cuh"
#include "sm90/score_tile.cuh"
#include "sm90/tile_scheduler.cuh"

namespace sm90 {

struct MaskPacker {
  const ForwardParams& p;
  unsigned base;  // shared memory
  ForwardBarriers barriers;
  int warp;  // 0 to kHelpers - 1
  int lane;
  int kv = 0;         // tiles of keys packed for earlier tiles of queries
  int raw = 0;        // the next raw stage
  int raw_phase = 0;  // and its phase
  int turn = 0;       // the warp that takes the next 32 rows

  __device__ __forceinline__ MaskPacker(const ForwardParams& params, unsigned memory, int warp_idx)
      : p(params),
        base(memory),
        barriers(memory),
        warp(warp_idx),
        lane(static_cast<int>(threadIdx.x) % 32) {}

  __device__ __forceinline__ void Run(const QueryTile& tile) {
#pragma unroll 1
    for (int i = 0; i < tile.kv_count; ++i) {
      const int stage = (kv + i) % kStages;
      WaitTogether(ForwardBarriers::kKFree + stage, (kv + i) / kStages + 1);
#pragma unroll 1
      for (int w = 0; w < kWarpgroups; ++w) {
        WaitTogether(ForwardBarriers::kRawReady + raw, raw_phase);
        const unsigned from = base + kShared.raw_mask + static_cast<unsigned>(raw * kRawMaskBytes);
        const unsigned to =
            base + kShared.bits + static_cast<unsigned>(stage * kBitsBytes + w * 64 * kBitsRow);
#pragma unroll 1
        for (int half = 0; half < 2; ++half) {
          if (turn == warp) PackRow(from, to, 32 * half + lane);
          turn = turn == kHelpers - 1 ? 0 : turn + 1;
        }
        Release(ForwardBarriers::kRawFree + raw);
        if (++raw == kRawStages) {
          raw = 0;
          raw_phase ^= 1;
        }
      }
      Release(ForwardBarriers::kBitsReady + stage);
    }
    kv += tile.kv_count;
  }

  // One lane arrives for the warp, behind the accesses of all its lanes.
  __device__ __forceinline__ void Release(int barrier) const {
    __syncwarp();
    if (lane == 0) ptx::BarrierArrive(barriers.At(barrier));
  }

 private:
  // As in forward_producer.cuh.
  __device__ __forceinline__ void WaitTogether(int barrier, int phase) const {
    barriers.Wait(barrier, phase);
    __syncwarp();
  }

  // Inserts below whether the four bytes of x are nonzero: the first byte's bit is the lowest.
  __device__ __forceinline__ static void Insert(unsigned x, unsigned& bits) {
    const unsigned signs = (((x & 0x7f7f7f7fu) + 0x7f7f7f7fu) | x) & 0x80808080u;
    // Bits 7, 15, 23 and 31 to 28, 29, 30 and 31.
    bits = bits << 4 | signs * 0x00204081u >> 28;
  }

  __device__ __forceinline__ static void PackRow(unsigned from, unsigned to, int row) {
    unsigned bits[4]{};
#pragma unroll
    for (int c = kTileKv / 16 - 1; c >= 0; --c) {
      const uint4 keys = ptx::LoadShared128(from + ScoreTile<1, kScoreKeys>::At(row, 16 * c));
      Insert(ptx::PermuteBytes(keys.x, keys.z, 0x5410), bits[0]);
      Insert(ptx::PermuteBytes(keys.x, keys.z, 0x7632), bits[1]);
      Insert(ptx::PermuteBytes(keys.y, keys.w, 0x5410), bits[2]);
      Insert(ptx::PermuteBytes(keys.y, keys.w, 0x7632), bits[3]);
    }
    const unsigned at = to + static_cast<unsigned>(row * kBitsRow);
    if constexpr (kTileKv == 128) {
      ptx::StoreShared128(at, __uint_as_float(bits[0]), __uint_as_float(bits[1]),
                          __uint_as_float(bits[2]), __uint_as_float(bits[3]));
    } else {
      ptx::StoreShared64(at, __uint_as_float(ptx::PermuteBytes(bits[0], bits[1], 0x5410)),
                         __uint_as_float(ptx::PermuteBytes(bits[2], bits[3], 0x5410)));
    }
  }
};

}  // namespace sm90
