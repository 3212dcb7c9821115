// The producer of sm90/forward.cu: one warp loads Q, K and V of the block's tiles by TMA, as far
// ahead of the consumers as the rings allow, also across tiles of queries.
#pragma once
#include "ptx/tma.cuh"
#include "sm90/forward_splitter.cuh"
#include "sm90/score_tile.cuh"
#include "sm90/tile_scheduler.cuh"

namespace sm90 {

// Loads the tile of bias or mask of warpgroup w and the i-th tile of keys. Called by one thread.
template <int bytes>
__device__ __forceinline__ void LoadScoreTile(const QueryTile& tile, int i, int w, const void* map,
                                              const ScorePlace& place, unsigned to,
                                              unsigned ready) {
  using Layout = ScoreTile<bytes, kScoreKeys>;
#pragma unroll
  for (int c = 0; c < Layout::kBoxes; ++c) {
    ptx::TmaLoad(to + c * Layout::kBoxBytes, map, ready,
                 (tile.kv_end - 1 - i) * kTileKv + c * (Layout::kRowBytes / bytes),
                 tile.row + 64 * w, place.head, place.entry, ptx::kEvictFirst);
  }
}

struct Producer {
  const ForwardParams& p;
  unsigned base;  // shared memory
  ForwardBarriers barriers;
  bool leader;        // the lane that issues loads
  Splitter splitter;  // f32
  int kv = 0;         // tiles of keys loaded for earlier tiles of queries
  int tile_idx = 0;   // tiles of queries loaded before
  int published = 0;  // and published
  int head_kv = 0;    // of the current tile of queries

  __device__ __forceinline__ Producer(const ForwardParams& params, unsigned memory)
      : p(params),
        base(memory),
        barriers(memory),
        leader(threadIdx.x % 32 == 0),
        splitter(params, memory, 0) {}

  __device__ __forceinline__ void Run() {
    const TileScheduler scheduler{p};
    int index = static_cast<int>(blockIdx.x);
    for (int t = 0;; ++t) {
      if constexpr (config::schedule != kDynamic) index = scheduler.StaticTile(t);
      if (index >= scheduler.End()) break;
      QueryTile tile;
      const bool rows = scheduler.Locate(index, tile);
      // Before the loads, so that its latency is hidden.
      if constexpr (config::schedule == kDynamic) {
        if (leader) index = scheduler.TakeTile();
      }
      if (rows) {
        SetKeys(scheduler, tile);
        if constexpr (kPublished) Publish(&tile);
        Load(tile);
      }
      if constexpr (config::schedule == kDynamic) index = __shfl_sync(~0u, index, 0);
    }
    if constexpr (kPublished) Publish(nullptr);
  }

 private:
  // Sets the tiles of keys that the block visits; in lane w, `own` of warpgroup w.
  __device__ __forceinline__ void SetKeys(const TileScheduler& scheduler, QueryTile& tile) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    TileRange block;
    TileRange own;
    if constexpr (kRowRanges) {
#pragma unroll
      for (int w = 0; w < kWarpgroups; ++w) {
        const TileRange rows = scheduler.ReadRange(tile, tile.row + 64 * w);
        block.any_begin = min(block.any_begin, rows.any_begin);
        block.any_end = max(block.any_end, rows.any_end);
        if (lane == w) own = rows;
      }
    } else {
      block = RangeOfTile(tile);
      own = RangeOfGroup(tile, lane);
    }
    scheduler.SetKeys(block, tile);
    tile.own = WarpgroupTiles(tile, own);
  }

  // Null: nothing is left.
  __device__ __forceinline__ void Publish(const QueryTile* tile) {
    const int slot = published % ForwardBarriers::kTileSlots;
    WaitTogether(ForwardBarriers::kTileFree + slot, published / ForwardBarriers::kTileSlots + 1);
    const TileSlot to{barriers.SlotAt(slot)};
    if (tile != nullptr) {
      to.Store(*tile);
    } else {
      to.StoreEnd();
    }
    // Each lane that stores arrives.
    if (threadIdx.x % 32 < kWarpgroups) {
      ptx::BarrierArrive(barriers.At(ForwardBarriers::kTileReady + slot));
    }
    ++published;
  }

  // All lanes wait, and none continues before all have waited: a lane that falls behind the leader
  // could miss a phase of the barrier and wait forever. If only the leader waits, the compiler
  // spills.
  __device__ __forceinline__ void WaitTogether(int barrier, int phase) const {
    barriers.Wait(barrier, phase);
    __syncwarp();
  }

  // K of the first tile of keys and Q come first, as the first product needs them; then each K
  // before the V of the tile before it.
  __device__ __forceinline__ void Load(const QueryTile& tile) {
    head_kv = tile.head / p.common.heads_per_kv;
    if constexpr (kSplit) {
      splitter.Run(tile);
      return;
    }
    if constexpr (kWide) {
      LoadWide(tile);
      return;
    }
    if (tile.kv_count > 0) LoadK(tile, 0);
    for (int w = 0; w < kWarpgroups; ++w) LoadQ(tile, w);
    for (int i = 1; i < tile.kv_count; ++i) {
      LoadK(tile, i);
      LoadV(tile, i - 1);
    }
    if (tile.kv_count > 0) LoadV(tile, tile.kv_count - 1);
    kv += tile.kv_count;
    ++tile_idx;
  }

  // For dims above 256. V has one stage, so V of a tile waits until V of the previous tile has been
  // read, which is when the consumers begin with the next S. Chunks of K that fit into the ring are
  // therefore issued before it.
  __device__ __forceinline__ void LoadWide(const QueryTile& tile) {
    constexpr int kChunks = kDimQk / 64;
    constexpr int kBefore = kChunks < kStages ? kChunks : kStages;
    for (int i = 0; i < max(tile.kv_count, 1); ++i) {
      if (tile.kv_count > 0) {
        for (int c = 0; c < kBefore; ++c) LoadChunk(tile, i, c, (kv + i) * kChunks + c);
      }
      if (i > 0) {
        LoadV(tile, i - 1);
      } else {
        for (int w = 0; w < kWarpgroups; ++w) LoadQ(tile, w);
      }
      if (tile.kv_count == 0) break;
      for (int c = kBefore; c < kChunks; ++c) LoadChunk(tile, i, c, (kv + i) * kChunks + c);
    }
    if (tile.kv_count > 0) LoadV(tile, tile.kv_count - 1);
    kv += tile.kv_count;
    ++tile_idx;
  }

  // The n-th chunk of K: 64 columns.
  __device__ __forceinline__ void LoadChunk(const QueryTile& tile, int i, int c, int n) const {
    const int stage = n % kStages;
    WaitTogether(ForwardBarriers::kKFree + stage, n / kStages + 1);
    if (!leader) return;
    const unsigned ready = barriers.At(ForwardBarriers::kKReady + stage);
    ptx::BarrierExpect(ready, kKBytes);
    LoadTile<64, 128>(tile, i, &p.k, kShared.k + stage * kKBytes, ready, c * 64);
  }

  __device__ __forceinline__ void LoadQ(const QueryTile& tile, int w) const {
    const int stage = tile_idx % kQStages;
    WaitTogether(ForwardBarriers::QFree(w, stage), tile_idx / kQStages + 1);
    if (!leader) return;
    const unsigned ready = barriers.At(ForwardBarriers::QReady(w, stage));
    ptx::BarrierExpect(ready, 64 * kDimQk * kElementBytes);
#pragma unroll
    for (int n = 0; n < 64 / kGroupHeadRows; ++n) {
      int row = 64 * w + n * kGroupHeadRows;  // of the tile
      const int to = kShared.q + stage * kQBytes + row * kQkRowBytes;
      int head = tile.head;
      if constexpr (kTileHeads > 1) {
        head += row / kHeadRows;
        row %= kHeadRows;
      }
#pragma unroll
      for (int c = 0; c < kDimQk * kElementBytes / kQkRowBytes; ++c) {
        ptx::TmaLoad(base + to + c * kTileQ * kQkRowBytes, &p.q, ready,
                     c * (kQkRowBytes / kElementBytes),
                     static_cast<int>(tile.seq.first_q) + tile.row + row, head, Batch(tile),
                     ptx::kEvictFirst);
      }
    }
  }

  __device__ __forceinline__ void LoadK(const QueryTile& tile, int i) {
    const int stage = (kv + i) % kStages;
    WaitTogether(ForwardBarriers::kKFree + stage, (kv + i) / kStages + 1);
    if (!leader) return;
    const unsigned ready = barriers.At(ForwardBarriers::kKReady + stage);
    ptx::BarrierExpect(ready, kKBytes + kTileQ * kTileKv * (kBiasBytes + kMaskBytes));
    LoadTile<kDimQk, kQkRowBytes>(tile, i, &p.k, kShared.k + stage * kKBytes, ready);
    const int scores = kShared.score + stage * kTileQ * kTileKv * (kBiasBytes + kMaskBytes);
    if constexpr (kBiasBytes > 0) {
      LoadScores<kBiasBytes>(tile, i, &p.bias, BiasPlace(p.common, tile.head, tile.seq.idx), scores,
                             ready);
    }
    if constexpr (kMaskBytes > 0) {
      LoadScores<kMaskBytes>(tile, i, &p.mask, MaskPlace(p.common, tile.head, tile.seq.idx),
                             scores + kTileQ * kTileKv * kBiasBytes, ready);
    }
  }

  __device__ __forceinline__ void LoadV(const QueryTile& tile, int i) const {
    constexpr int kRing = kWide ? 1 : kF8 ? kRawStages : kStages;
    const int stage = (kv + i) % kRing;
    WaitTogether((kF8 ? ForwardBarriers::kRawFree : ForwardBarriers::kVFree) + stage,
                 (kv + i) / kRing + 1);
    if (!leader) return;
    const unsigned ready =
        barriers.At((kF8 ? ForwardBarriers::kRawReady : ForwardBarriers::kVReady) + stage);
    ptx::BarrierExpect(ready, kVBytes);
    LoadTile<kDimVo, kVRowBytes>(tile, i, &p.v, (kF8 ? kShared.raw_v : kShared.v) + stage * kVBytes,
                                 ready, kParts > 1 ? tile.part * kDimVo : 0);
  }

  // Loads `dim` columns from `column` on.
  template <int dim, int row_bytes>
  __device__ __forceinline__ void LoadTile(const QueryTile& tile, int i, const void* map, int to,
                                           unsigned ready, int column = 0) const {
    const int row = static_cast<int>(tile.seq.first_kv) + (tile.kv_end - 1 - i) * kTileKv;
#pragma unroll
    for (int c = 0; c < dim * kElementBytes / row_bytes; ++c) {
      ptx::TmaLoad(base + to + c * kTileKv * row_bytes, map, ready,
                   column + c * (row_bytes / kElementBytes), row, head_kv, Batch(tile),
                   ptx::kEvictLast);
    }
  }

  // A tile of bias or mask for each warpgroup.
  template <int bytes>
  __device__ __forceinline__ void LoadScores(const QueryTile& tile, int i, const void* map,
                                             const ScorePlace& place, int to,
                                             unsigned ready) const {
#pragma unroll
    for (int w = 0; w < kWarpgroups; ++w) {
      LoadScoreTile<bytes>(tile, i, w, map, place,
                           base + to + w * ScoreTile<bytes, kScoreKeys>::kBytes, ready);
    }
  }
  __device__ __forceinline__ static int Batch(const QueryTile& tile) {
    return config::lengths == kPacked ? 0 : tile.seq.idx;
  }
};

}  // namespace sm90
