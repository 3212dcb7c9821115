// Forward on Hopper (sm_90a): o and lse, with wgmma, TMA and warp specialization.
//
// A persistent block processes tiles of tile_q queries, of one head or of several heads that share
// K and V (tile_scheduler.cuh). Roles:
//   producer warp   loads Q, K and V through rings in shared memory (forward_producer.cuh)
//   helper warps    f8: three transpose V (forward_transposer.cuh). Mask: one loads its bytes, two
//                   turn them into bits (forward_mask_packer.cuh). f32: all four warps of the
//                   producer warpgroup split K and V (forward_splitter.cuh)
//   consumers       1 to 4 warpgroups own 64 queries each (forward_consumer.cuh; above dim 256
//                   forward_wide_consumer.cuh; f32: forward_split_consumer.cuh). They share only
//                   the tiles of K and V
// S and P stay in registers. The softmax updates its running max only when sums of P exceed a
// threshold (lazy rescaling, online_softmax.cuh). Tiles of keys that no query of a tile sees are
// never loaded, and a warpgroup skips tiles that only other warpgroups see. Only partial tiles are
// masked.
//
// Config: forward_config.cuh. Shared memory: forward_shared.cuh. Diagram of the schedule, resources
// and measurements: docs/kernels/sm90_forward.md.
#include "config.cuh"
#include "ptx/grid.cuh"
#include "sm90/forward_consumer.cuh"
#include "sm90/forward_epilogue.cuh"
#include "sm90/forward_mask_packer.cuh"
#include "sm90/forward_producer.cuh"
#include "sm90/forward_split_consumer.cuh"
#include "sm90/forward_splitter.cuh"
#include "sm90/forward_transposer.cuh"
#include "sm90/forward_wide_consumer.cuh"

namespace {

using namespace sm90;

__device__ __forceinline__ void Produce(const ForwardParams& p, unsigned memory) {
  Producer producer(p, memory);
  if (!kSplit && producer.leader) {  // f32 has no maps
    ptx::TmaPrefetchMap(&p.q);
    ptx::TmaPrefetchMap(&p.k);
    ptx::TmaPrefetchMap(&p.v);
  }
  producer.Run();
}

// The next tile with rows, for a Consumer, Transposer, Splitter, MaskLoader or MaskPacker; false if
// nothing is left. `t`: what `tile` was before, -1 at first; of a static schedule it counts tiles
// without rows, too.
template <class Role>
__device__ __forceinline__ bool NextTile(const Role& c, int warpgroup, int& t, QueryTile& tile) {
  const TileScheduler scheduler{c.p};
  ++t;
  if constexpr (kPublished) {
    c.barriers.Wait(ForwardBarriers::kTileReady + t % ForwardBarriers::kTileSlots,
                    t / ForwardBarriers::kTileSlots);
    const bool left = TileSlot{c.barriers.SlotAt(t)}.Load(warpgroup, tile);
    tile.seq = scheduler.SequenceAt(tile.seq.idx);
    return left;
  }
  for (;; ++t) {
    const int index = scheduler.StaticTile(t);
    if (index >= scheduler.End()) return false;
    if (scheduler.Locate(index, tile)) break;
  }
  scheduler.SetKeys(RangeOfTile(tile), tile);
  tile.own = WarpgroupTiles(tile, RangeOfGroup(tile, warpgroup));
  return true;
}

// Nothing reads the slot of tile t after this.
template <class Role>
__device__ __forceinline__ void ReleaseTile(const Role& c, int t) {
  if constexpr (kPublished) {
    c.Release(ForwardBarriers::kTileFree + t % ForwardBarriers::kTileSlots);
  }
}

template <class BlockConsumer>
__device__ __forceinline__ void ConsumeAs(const ForwardParams& p, unsigned memory, int warpgroup) {
  BlockConsumer consumer(p, memory, warpgroup);
  // The first warpgroup issues first.
  if (kPingPong && warpgroup == kWarpgroups - 1) ptx::NamedBarrierArrive(1, 256);
  QueryTile tile;
  for (int t = -1; NextTile(consumer, warpgroup, t, tile);) {
    SelectHead(warpgroup, consumer.warp, tile);
    consumer.Compute(tile);
    // Read again, so that it takes no registers in Compute(). f32 needs it there.
    if constexpr (kPublished && !kSplit) {
      TileSlot{consumer.barriers.SlotAt(t)}.LoadPlace(tile);
      SelectHead(warpgroup, consumer.warp, tile);
    }
    consumer.kv += tile.kv_count;
    ReleaseTile(consumer, t);
    if constexpr (kWide) consumer.BeginEpilogue();
    Epilogue<BlockConsumer>(consumer, tile).Run();
    // One lane stores the tile. Without this, the compiler assumes that the others have gone on to
    // the next tile, and keeps nothing in uniform registers.
    __syncwarp();
    if constexpr (kWide) consumer.EndEpilogue();
  }
  if (consumer.lane == 0) ptx::TmaStoreWait();
}

template <bool wide, bool split>
struct ConsumerOf {
  using Type = Consumer;
};
template <>
struct ConsumerOf<true, false> {
  using Type = WideConsumer;
};
template <>
struct ConsumerOf<false, true> {
  using Type = SplitConsumer;
};
__device__ __forceinline__ void Consume(const ForwardParams& p, unsigned memory, int warpgroup) {
  ConsumeAs<ConsumerOf<kWide, kSplit>::Type>(p, memory, warpgroup);
}

// By a helper warp, as a Transposer, Splitter, MaskLoader or MaskPacker.
template <class Role>
__device__ __forceinline__ void Help(const ForwardParams& p, unsigned memory, int warp) {
  Role helper(p, memory, warp);
  QueryTile tile;
  for (int t = -1; NextTile(helper, 0, t, tile);) {
    ReleaseTile(helper, t);
    helper.Run(tile);
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(sm90::kThreads, config::blocks)
    attn_forward_sm90(const __grid_constant__ sm90::ForwardParams p) {
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  const unsigned memory = ptx::SharedAddress(shared_memory);
  if (threadIdx.x == 0) ForwardBarriers(memory).Init();
  __syncthreads();
  ptx::WaitForPrimary();
  // The shuffle tells the compiler that roles are warp-uniform.
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  if constexpr (kProducerWarp) {
    if (warp == 4 * kWarpgroups) {
      Produce(p, memory);
    } else {
      Consume(p, memory, warp / 4);
    }
  } else if (warp < 4) {
    ptx::ReleaseRegisters<kProducerRegisters>();
    if (warp == 0) Produce(p, memory);
    if constexpr (kF8) {
      if (warp > 0) Help<Transposer>(p, memory, warp - 1);
    }
    if constexpr (kSplit) {
      if (warp > 0) Help<Splitter>(p, memory, warp);
    }
    if constexpr (kMaskBits) {
      if (warp == 1) Help<MaskLoader>(p, memory, 0);
      if (warp > 1) Help<MaskPacker>(p, memory, warp - 2);
    }
  } else {
    ptx::AcquireRegisters<kConsumerRegisters>();
    Consume(p, memory, warp / 4 - 1);
  }
}
