// f8: three warps of the producer warpgroup transpose V in shared memory, because 8-bit products
// take only K-major operands.
//
// V changes from [key][dim], as TMA writes it, to [dim][key]: ldmatrix.trans moves pairs of dims, a
// byte permutation separates them, and stmatrix stores rows of 16 keys. This determines two orders
// within blocks of 16:
//   keys  byte 4 t + 2 u + e is key 8 u + 2 t + e, as P has them in registers (score_modifiers.cuh)
//   dims  row 8 u + g is dim 2 g + u, so that 8 rows are consecutive and stmatrix has no bank
//         conflicts; a lane's accumulators then hold four adjacent columns of O
//         (forward_epilogue.cuh)
#pragma once
#include "ptx/math.cuh"
#include "ptx/mma.cuh"
#include "ptx/tma.cuh"
#include "ptx/warpgroup.cuh"
#include "sm90/tile_scheduler.cuh"

namespace sm90 {

struct Transposer {
  const ForwardParams& p;
  unsigned base;  // shared memory
  ForwardBarriers barriers;
  int warp;  // 0 to kHelpers - 1
  int lane;
  int kv = 0;  // tiles of keys transposed for earlier tiles of queries

  __device__ __forceinline__ Transposer(const ForwardParams& params, unsigned memory, int warp_idx)
      : p(params),
        base(memory),
        barriers(memory),
        warp(warp_idx),
        lane(static_cast<int>(threadIdx.x) % 32) {}

  __device__ __forceinline__ void Run(const QueryTile& tile) {
#pragma unroll 1
    for (int i = 0; i < tile.kv_count; ++i) {
      const int raw = (kv + i) % kRawStages;
      const int stage = (kv + i) % kStages;
      WaitTogether(ForwardBarriers::kRawReady + raw, (kv + i) / kRawStages);
      WaitTogether(ForwardBarriers::kVFree + stage, (kv + i) / kStages + 1);
      Transpose(base + kShared.raw_v + static_cast<unsigned>(raw * kVBytes),
                base + kShared.v + static_cast<unsigned>(stage * kVBytes),
                tile.seq.len_kv - (tile.kv_end - 1 - i) * kTileKv);
      ptx::FenceAsyncProxy();
      Release(ForwardBarriers::kRawFree + raw);
      if (lane == 0) ptx::BarrierArrive(barriers.At(ForwardBarriers::kVReady + stage));
    }
    kv += tile.kv_count;
  }

  // One lane arrives for the warp, after the accesses of all its lanes.
  __device__ __forceinline__ void Release(int barrier) const {
    __syncwarp();
    if (lane == 0) ptx::BarrierArrive(barriers.At(barrier));
  }

 private:
  // See Producer::WaitTogether() in forward_producer.cuh.
  __device__ __forceinline__ void WaitTogether(int barrier, int phase) const {
    barriers.Wait(barrier, phase);
    __syncwarp();
  }

  // Transposes every third block of 16 keys, starting with block `warp`. `keys`: rows of the tile
  // that are within the sequence.
  __device__ __forceinline__ void Transpose(unsigned from, unsigned to, int keys) const {
    const int matrix = lane / 8;
    const int r = lane % 8;
#pragma unroll 1
    for (int block = warp; block < kTileKv / 16; block += kHelpers) {
      // Matrices: keys 0 to 7 and 8 to 15 of 16 dims, then the same of the next 16 dims.
      const int row = 16 * block + matrix % 2 * 8 + r;
      // Rows: even dims, odd dims, then the same of the next 16 dims.
      const int column = matrix * 8 + r;
      const unsigned row_at = from + static_cast<unsigned>(row * kVRowBytes);
      const unsigned column_at =
          to +
          static_cast<unsigned>(block / (kKeyRowBytes / 16) * kDimVo * kKeyRowBytes +
                                column * kKeyRowBytes) +
          (Swizzled<kKeyRowBytes>(block % (kKeyRowBytes / 16), r) << 4);
#pragma unroll 4
      for (int d = 0; d < kDimVo / 32; ++d) {
        const unsigned chunk = d % (kVRowBytes / 32) * 2 + matrix / 2;
        unsigned pairs[4];
        ptx::LoadMatrixTransposed(pairs, row_at + d / (kVRowBytes / 32) * kTileKv * kVRowBytes +
                                             (Swizzled<kVRowBytes>(chunk, r) << 4));
        if constexpr (config::lengths != kNoLengths) HidePastEnd(keys - 16 * block, pairs);
        ptx::StoreMatrix(column_at + static_cast<unsigned>(d * 32 * kKeyRowBytes),
                         ptx::PermuteBytes(pairs[0], pairs[1], 0x6420),
                         ptx::PermuteBytes(pairs[0], pairs[1], 0x7531),
                         ptx::PermuteBytes(pairs[2], pairs[3], 0x6420),
                         ptx::PermuteBytes(pairs[2], pairs[3], 0x7531));
      }
    }
  }

  // Keys past the sequence's end may contain anything, and 0 * NaN is NaN. `keys`: how many of
  // these 16 exist. A register has keys 2 t and 2 t + 1 of a matrix, t = lane % 4.
  __device__ __forceinline__ void HidePastEnd(int keys, unsigned (&pairs)[4]) const {
    if (keys >= 16) return;
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      const int left = keys - m % 2 * 8 - lane % 4 * 2;
      if (left < 2) pairs[m] &= left < 1 ? 0u : 0xffffu;
    }
  }
};

}  // namespace sm90
