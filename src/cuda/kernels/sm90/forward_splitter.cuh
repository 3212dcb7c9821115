// f32: the four warps of the producer warpgroup load K and V from global memory and write them to
// shared memory as bf16 parts (bf16_parts.cuh), for the consumers of
// forward_split_consumer.cuh.
//
// One ring of slots, all of the same size, holds both in the order of use: K of a tile in kKSlots
// slots of 64 columns, then its V in kVSlots slots of kVSlotKeys keys.
//   K  [part][key][64 columns]
//   V  [part][64 columns][key of the slot][column]
#pragma once
#include "ptx/tma.cuh"
#include "sm90/bf16_parts.cuh"
#include "sm90/tile_scheduler.cuh"

namespace sm90 {

// A position in the ring of slots.
struct SlotCursor {
  int stage = 0;
  int phase = 0;

  __device__ __forceinline__ void Next() {
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1;
    }
  }
  // Offset in shared memory from the start of the ring.
  __device__ __forceinline__ unsigned Offset() const {
    return static_cast<unsigned>(stage * kSlotBytes);
  }
};

struct Splitter {
  const ForwardParams& p;
  unsigned base;  // shared memory
  ForwardBarriers barriers;
  int warp;  // 0 to 3
  int lane;
  SlotCursor slot;

  __device__ __forceinline__ Splitter(const ForwardParams& params, unsigned memory, int warp_idx)
      : p(params),
        base(memory),
        barriers(memory),
        warp(warp_idx),
        lane(static_cast<int>(threadIdx.x) % 32) {}

  // Splits all tiles of keys that the block visits.
  __device__ __forceinline__ void Run(const QueryTile& tile) {
    const attn::device::Arguments& a = p.common;
    const int head = tile.head / a.heads_per_kv;
    const char* const k = shared::RowAddress(a.k, tile.seq.idx, tile.seq.first_kv, head);
    const char* const v = shared::RowAddress(a.v, tile.seq.idx, tile.seq.first_kv, head);
#pragma unroll 1
    for (int i = 0; i < tile.kv_count; ++i) {
      const int key = (tile.kv_end - 1 - i) * kTileKv;
      const int keys = tile.seq.len_kv - key;
      const char* const k_rows = k + key * a.k.stride_row;
#pragma unroll 1
      for (int n = 0; n < kKSlots; ++n) {
        Fill<kTileKv>(k_rows + n * 256, a.k.stride_row, keys, a.dim_qk - 64 * n);
      }
      const char* const v_rows = v + key * a.v.stride_row;
#pragma unroll 1
      for (int n = 0; n < kVSlots; ++n) {
        Fill<kVSlotKeys>(v_rows + n * kVSlotKeys * a.v.stride_row, a.v.stride_row,
                         keys - n * kVSlotKeys, a.dim_vo);
      }
    }
  }

  // One lane arrives for the warp, after the accesses of all its lanes.
  __device__ __forceinline__ void Release(int barrier) const {
    __syncwarp();
    if (lane == 0) ptx::BarrierArrive(barriers.At(barrier));
  }

 private:
  // Fills the next slot with blocks of kRows rows and 64 columns. Issues the loads before it waits
  // for the slot.
  template <int kRows>
  __device__ __forceinline__ void Fill(const char* at, long long stride_row, int rows,
                                       int columns) {
    constexpr int kBlocks = kTileKv / kRows;
    const int thread = 32 * warp + lane;
    RowBlock<kRows> blocks[kBlocks];
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      blocks[b].Load(at + b * 256, stride_row, rows, columns - 64 * b, thread);
    }
    barriers.Wait(ForwardBarriers::kKFree + slot.stage, slot.phase + 1);
    __syncwarp();  // as in forward_producer.cuh
    const unsigned to = base + kShared.k + slot.Offset();
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      blocks[b].Hide(rows, columns - 64 * b, thread);
      blocks[b].Store(to + b * kRows * 128, kPartBytes, thread);
    }
    ptx::FenceAsyncProxy();
    Release(ForwardBarriers::kKReady + slot.stage);
    slot.Next();
  }
};

}  // namespace sm90
