// Persistent blocks of sm90/backward.cu (Config: persistent): one block per multiprocessor, which
// computes several tiles of keys (items) in sequence. Q and dO of the next item are loaded before
// consumers finish the current one, and its K and V while they store dK and dV.
//
// TileLoader takes items in order from a counter in global memory, one item ahead, and passes them
// to the other warps. Without an order of additions to dQ, a block begins with item blockIdx.x,
// which saves the counter's latency. With an order, the first item is taken from the counter too:
// an item waits for items before it, which then are items of running blocks, also where fewer
// blocks run at once than the grid has (in a green context).
#pragma once
#include "ptx/memory.cuh"
#include "sm90/backward_consumer.cuh"
#include "sm90/backward_epilogue.cuh"
#include "sm90/backward_producer.cuh"

namespace sm90 {

// When a block takes its next item: after (late) or before (early) it has issued all loads of the
// current one. If it takes the item early, the item may wait while other blocks have nothing left
// to do, and blocks that add to the same dQ after it wait too; if late, the counter's latency
// delays the next loads. Without an order of additions, late is 2.5 to 5 % faster at dim 128 under
// a causal mask, and 1 % slower at dim 64, where items are short (H100).
inline constexpr bool kTakesLate = config::persistent == attn::device::sm90::kTakesLate;

struct ItemQueue {
  const BackwardParams& p;
  BackwardBarriers barriers;

  // Called by TileLoader's thread.
  __device__ __forceinline__ unsigned TakeFirst() const {
    return p.common.dq_ordered != 0 ? atomicAdd(p.num_taken, 1u) : blockIdx.x;
  }
  __device__ __forceinline__ unsigned TakeNext() const {
    return atomicAdd(p.num_taken, 1u) + (p.common.dq_ordered != 0 ? 0u : gridDim.x);
  }
  // Passes the block's n-th item to the other warps.
  __device__ __forceinline__ void Publish(int n, unsigned item) const {
    const int slot = n % kItemSlots;
    barriers.Wait(BackwardBarriers::kItemFree + slot, n / kItemSlots + 1);
    ptx::StoreShared32(Slot(slot), item);
    barriers.Arrive(BackwardBarriers::kItemReady + slot);
  }
  // Read() is called by one thread, ReadByWarp() by all lanes of a warp. In ReadByWarp() one lane
  // reads and frees the slot: if all lanes read, __syncwarp alone would order their reads, which
  // racecheck does not recognize.
  __device__ __forceinline__ unsigned Read(int n) const {
    const int slot = n % kItemSlots;
    barriers.Wait(BackwardBarriers::kItemReady + slot, n / kItemSlots);
    const unsigned item = ptx::LoadShared32(Slot(slot));
    barriers.Arrive(BackwardBarriers::kItemFree + slot);
    return item;
  }
  __device__ __forceinline__ unsigned ReadByWarp(int n) const {
    unsigned item = 0;
    if (threadIdx.x % 32 == 0) item = Read(n);
    return __shfl_sync(~0u, item, 0);
  }
  __device__ __forceinline__ KeyTile KeysOf(unsigned item) const {
    const Arguments& a = p.common;
    return {p, a.dq_ordered != 0, shared::SequenceOf(a, KeyTile::SequenceIdx(p, item)), 0, item};
  }

 private:
  __device__ __forceinline__ unsigned Slot(int slot) const {
    return barriers.base + static_cast<unsigned>(kItemsAt + 4 * slot);
  }
};

// Called by one thread.
__device__ __forceinline__ void LoadItems(const BackwardParams& p, unsigned memory) {
  const BackwardBarriers barriers(memory);
  const ItemQueue queue{p, barriers};
  int step = 0;
  unsigned item = queue.TakeFirst();
  queue.Publish(0, item);
#pragma unroll 1
  for (int n = 0; item < p.num_items; ++n) {
    unsigned next = kTakesLate ? 0 : queue.TakeNext();
    step = TileLoader{p, queue.KeysOf(item), memory, barriers}.Run(n, step);
    if constexpr (kTakesLate) next = queue.TakeNext();
    queue.Publish(n + 1, next);
    item = next;
  }
}

// Calls visit(n, keys, step) for each of the block's items; it returns the next step. Returns the
// step after the last. Called by one thread of a warp, or with by_warp by all lanes.
template <bool by_warp, class Visit>
__device__ __forceinline__ int ForEachItem(const BackwardParams& p, const ItemQueue& queue,
                                           const Visit& visit) {
  int step = 0;
#pragma unroll 1
  for (int n = 0;; ++n) {
    const unsigned item = by_warp ? queue.ReadByWarp(n) : queue.Read(n);
    if (item >= p.num_items) return step;
    step = visit(n, queue.KeysOf(item), step);
  }
}

// Called by one thread for each consumer warpgroup.
__device__ __forceinline__ void AddItems(const BackwardParams& p, unsigned memory, int warpgroup) {
  const BackwardBarriers barriers(memory);
  ForEachItem<false>(p, {p, barriers}, [&](int, const KeyTile& keys, int step) {
    const DbiasStore none{p, keys, memory, warpgroup};
    return DqAdder{p, keys, memory, barriers, warpgroup, none}.Run(step);
  });
  ptx::TmaStoreWait();
}

// Called by a warp.
__device__ __forceinline__ void LoadRowsOfItems(const BackwardParams& p, unsigned memory) {
  const BackwardBarriers barriers(memory);
  const int end = ForEachItem<true>(p, {p, barriers}, [&](int, const KeyTile& keys, int step) {
    return RowLoader{p, keys, memory, barriers}.Run(step);
  });
  RowLoader::Drain(end);
}

// Called by a consumer warpgroup.
__device__ __forceinline__ void ComputeItems(const BackwardParams& p, unsigned memory,
                                             int warpgroup) {
  ForEachItem<true>(p, {p, BackwardBarriers(memory)}, [&](int n, const KeyTile& keys, int step) {
    Consumer consumer(p, keys, memory, warpgroup, n);
    const int end = consumer.Run(step);
    BackwardEpilogue{consumer}.Run();
    return end;
  });
}

}  // namespace sm90
