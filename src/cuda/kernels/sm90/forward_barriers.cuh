// Barriers of sm90/forward.cu and the slots through which the producer publishes tiles.
//
// `ready`: TMA has written the data (one arrival and its bytes). `free`: every consumer warp has
// read it (one arrival per warp; one per thread for the mask's bits and bytes, which threads write
// and read). The n-th use of a ring is stage n % stages in phase n / stages. Consumers wait for
// this phase of `ready`, the producer for the previous phase of `free`.
#pragma once
#include "ptx/mbarrier.cuh"
#include "ptx/memory.cuh"
#include "sm90/forward_config.cuh"

namespace sm90 {

struct ForwardBarriers {
  unsigned base;

  enum {
    kQReady,
    kQFree = 8,
    // Dims above 256: K has up to 8 stages, where others have the barriers of raw stages; f32: K
    // and V together have slots.
    kKReady = kWide || kSplit ? 40 : 16,
    kKFree = kWide || kSplit ? 48 : 20,
    kVReady = 24,
    kVFree = 28,
    kTileReady = 32,
    kTileFree = 36,
    // f8: V as TMA wrote it; kVReady and kVFree are those of V transposed. Otherwise the mask's
    // bytes, with fewer stages, then its bits.
    kRawReady = 40,
    kRawFree = kMaskBits ? 46 : 48,
    kBitsReady = 52,
    kBitsFree = 56,
    kCount = 60
  };
  static_assert(!kMaskBits ||
                (kRawStages <= attn::device::sm90::kMaxRawMaskStages && kBitsStages <= 4));
  // Q is loaded and released per warpgroup.
  __device__ __forceinline__ static int QReady(int warpgroup, int stage) {
    return kQReady + kQStages * warpgroup + stage;
  }
  __device__ __forceinline__ static int QFree(int warpgroup, int stage) {
    return kQFree + kQStages * warpgroup + stage;
  }
  static_assert(kMaxStages == 4 && kMaxRawStages == 8 && kMaxWarpgroups * kQStages <= 8);
  // Published tiles of queries (TileSlot in tile_scheduler.cuh). Consumers keep theirs until its
  // epilogue.
  static constexpr int kTileSlots = 4;
  static constexpr int kSlotBytes = 128;
  static_assert(kMaxWarpgroups <= 6);
  static_assert(kCount * 8 + kTileSlots * kSlotBytes <= attn::device::sm90::kBarrierBytes);

  // `memory`: the block's shared memory.
  __device__ __forceinline__ explicit ForwardBarriers(unsigned memory)
      : base(memory + kShared.barriers) {}

  __device__ __forceinline__ unsigned At(int barrier) const {
    return base + static_cast<unsigned>(8 * barrier);
  }
  __device__ __forceinline__ void Wait(int barrier, int phase) const {
    ptx::BarrierWait(At(barrier), static_cast<unsigned>(phase & 1));
  }

  __device__ __forceinline__ unsigned SlotAt(int t) const {
    return base + static_cast<unsigned>(kCount * 8 + t % kTileSlots * kSlotBytes);
  }

  // Called by one thread; a barrier of the block must follow.
  __device__ __forceinline__ void Init() const {
    for (int i = 0; i < kWarpgroups * kQStages; ++i) {
      ptx::BarrierInit(At(kQReady + i), 1);
      ptx::BarrierInit(At(kQFree + i), 4);
    }
    for (int i = 0; i < kStages; ++i) {
      ptx::BarrierInit(At(kKReady + i), kSplit ? 4 : 1);
      ptx::BarrierInit(At(kKFree + i), 4 * kWarpgroups);
    }
    for (int i = 0; i < (kWide ? 1 : kSplit ? 0 : kStages); ++i) {
      ptx::BarrierInit(At(kVReady + i), kF8 ? kHelpers : 1);
      ptx::BarrierInit(At(kVFree + i), 4 * kWarpgroups);
    }
    if constexpr (kMaskBits) {
      for (int i = 0; i < kBitsStages; ++i) {
        ptx::BarrierInit(At(kBitsReady + i), 32 * kPackers);
        ptx::BarrierInit(At(kBitsFree + i), 128 * kWarpgroups);
      }
    }
    for (int i = 0; i < kTileSlots; ++i) {
      ptx::BarrierInit(At(kTileReady + i), kWarpgroups);
      ptx::BarrierInit(At(kTileFree + i), 4 * kWarpgroups + kHelpers);
    }
    for (int i = 0; i < kRawStages; ++i) {
      ptx::BarrierInit(At(kRawReady + i), 1);
      ptx::BarrierInit(At(kRawFree + i), kMaskBits ? 32 * kPackers : kHelpers);
    }
    ptx::BarrierInitFence();
  }
};

}  // namespace sm90
