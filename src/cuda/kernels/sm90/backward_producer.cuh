// The producer warpgroup of sm90/backward.cu, one role per warp:
//   TileLoader  warp 0: loads K, V once, then Q and dO of each step, by TMA
//   DqAdder     warps 1 and 2: add a consumer warpgroup's dQ to dq_accum, store its dS to dbias
//   RowLoader   warp 3: loads lse and delta of each step
#pragma once
#include "ptx/memory.cuh"
#include "ptx/tma.cuh"
#include "shared/dq_accum.cuh"
#include "shared/score.cuh"
#include "sm90/backward_barriers.cuh"
#include "sm90/backward_dbias.cuh"
#include "sm90/backward_keys.cuh"
#include "sm90/backward_loads.cuh"

namespace sm90 {

// Run() is called by one thread.
struct TileLoader {
  const BackwardParams& p;
  const KeyTile& keys;
  unsigned base;  // shared memory
  BackwardBarriers barriers;

  // Loads the block's item-th tile of keys, and the steps from first_step on. Returns the step
  // after the last.
  __device__ __forceinline__ int Run(int item = 0, int first_step = 0) const {
    const TileLoads loads{p, keys, base};
    const bool is_first = !kPersistent || item == 0;
    if (is_first) loads.Keys<kDim>(&p.k, kShared.k, barriers.At(BackwardBarriers::kKReady));
    const auto visit = [&](int step, int head, int i0) {
      const int stage = step % kStages;
      barriers.Wait(BackwardBarriers::kQFree + stage, step / kStages + 1);
      loads.Queries<kDim>(&p.q, kShared.q + stage * kQBytes,
                          barriers.At(BackwardBarriers::kQReady + stage), head, i0);
      if (is_first && step == first_step) {
        loads.Keys<kDim>(&p.v, kShared.v, barriers.At(BackwardBarriers::kVReady));
      }
      if constexpr (kScoreTiles) {  // a single stage, which becomes free early in a step
        barriers.Wait(BackwardBarriers::kScoresFree, step + 1);
        loads.Scores(kShared.score, barriers.At(BackwardBarriers::kScoresReady), head, i0);
      }
      barriers.Wait(BackwardBarriers::kDoutFree + stage, step / kStages + 1);
      loads.Queries<kDim>(&p.dout, kShared.dout + stage * kQBytes,
                          barriers.At(BackwardBarriers::kDoutReady + stage), head, i0);
      if (!is_first && step == first_step) ReplaceKeys(loads, item);
    };
    const int end = ForEachTile(p.common, keys, visit, first_step);
    if (kPersistent && end == first_step) {  // consumers wait for K and V all the same
      if (is_first) {
        loads.Keys<kDim>(&p.v, kShared.v, barriers.At(BackwardBarriers::kVReady));
      } else {
        ReplaceKeys(loads, item);
      }
    }
    return end;
  }

 private:
  // Loads K and V, once those of the previous item are free.
  __device__ __forceinline__ void ReplaceKeys(const TileLoads& loads, int item) const {
    barriers.Wait(BackwardBarriers::kKvFree, item - 1);
    loads.Keys<kDim>(&p.k, kShared.k, barriers.At(BackwardBarriers::kKReady));
    loads.Keys<kDim>(&p.v, kShared.v, barriers.At(BackwardBarriers::kVReady));
  }
};

// Run() is called by a warp. Rows past the length get {inf, 0}, so that their P and dS are 0. The
// scale of P is folded in: lse - kPShift scales P up, and delta / kPScale compensates for it in dS.
struct RowLoader {
  const BackwardParams& p;
  const KeyTile& keys;
  unsigned base;  // shared memory
  BackwardBarriers barriers;

  // Returns the step after the last.
  __device__ __forceinline__ int Run(int first_step = 0) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const auto visit = [&](int step, int head, int i0) {
      constexpr int kRows = kTileQ / 32;
      const int stage = step % kStages;
      float2 rows[kRows];
#pragma unroll
      for (int n = 0; n < kRows; ++n) {
        const int i = i0 + 32 * n + lane;
        rows[n] = {shared::kInfinity, 0.0f};
        if (i < keys.seq.len_q) {
          rows[n] = *reinterpret_cast<const float2*>(
              shared::RowAddress(p.common.lse_delta, keys.seq.idx, keys.seq.first_q + i, head));
        }
      }
      int2 ranges[kRowRanges ? kRows : 1];
      if constexpr (kRowRanges) LoadRanges(i0, ranges);
      if (step >= kStages) ptx::NamedBarrierWait(RowsFree(stage), kRowsFreeThreads);
      const unsigned to = base + static_cast<unsigned>(4 * (stage * kTileQ + lane));
#pragma unroll
      for (int n = 0; n < kRows; ++n) {
        ptx::StoreShared32(to + kShared.lse + 128 * n, __float_as_uint(rows[n].x - kPShift));
        ptx::StoreShared32(to + kShared.delta + 128 * n, __float_as_uint(rows[n].y / kPScale));
        if constexpr (kRowRanges) {
          ptx::StoreShared64(base + kShared.ranges + 8 * (stage * kTileQ + 32 * n + lane),
                             __int_as_float(ranges[n].x), __int_as_float(ranges[n].y));
        }
      }
      if constexpr (kLengths) ZeroPastEnd(step, i0);
      barriers.Arrive(BackwardBarriers::kRowsReady + stage);  // every lane, after its own stores
    };
    return ForEachTile(p.common, keys, visit, first_step);
  }
  // Waits for the last arrivals, so that no named barrier is left with an incomplete phase.
  __device__ __forceinline__ static void Drain(int num_steps) {
    for (int step = max(num_steps - kStages, 0); step < num_steps; ++step) {
      ptx::NamedBarrierWait(RowsFree(step % kStages), kRowsFreeThreads);
    }
  }

 private:
  // Loads {first key, number of keys} of this lane's rows.
  __device__ __forceinline__ void LoadRanges(int i0,
                                             int2 (&ranges)[kRowRanges ? kTileQ / 32 : 1]) const {
    const Arguments& a = p.common;
    const long long first = a.packed_q != 0 ? keys.seq.first_q : 1ll * keys.seq.idx * a.max_len_q;
#pragma unroll
    for (int n = 0; n < kTileQ / 32; ++n) {
      const int i = i0 + 32 * n + static_cast<int>(threadIdx.x) % 32;
      ranges[n] = {0, 0};
      if (i < keys.seq.len_q) {
        const int2 range = reinterpret_cast<const int2*>(a.row_ranges)[first + i];
        ranges[n] = {range.x, range.y - range.x};
      }
    }
  }

  __device__ __forceinline__ void ZeroPastEnd(int step, int i0) const {
    if (step == 0 && keys.j0 + kTileKv > keys.seq.len_kv) {
      const int rows = keys.seq.len_kv - keys.j0;
      ZeroFrom<kTileKv>(BackwardBarriers::kKReady, 0, kShared.k, rows);
      ZeroFrom<kTileKv>(BackwardBarriers::kVReady, 0, kShared.v, rows);
    }
    if (i0 + kTileQ > keys.seq.len_q) {
      const int stage = step % kStages;
      const int phase = step / kStages;
      const int rows = keys.seq.len_q - i0;
      ZeroFrom<kTileQ>(BackwardBarriers::kQReady + stage, phase, kShared.q + stage * kQBytes, rows);
      ZeroFrom<kTileQ>(BackwardBarriers::kDoutReady + stage, phase, kShared.dout + stage * kQBytes,
                       rows);
    }
  }
  // Zeroes a tile of kRows rows from row `rows` on.
  template <int kRows>
  __device__ __forceinline__ void ZeroFrom(int ready, int phase, int tile, int rows) const {
    barriers.Wait(ready, phase);
    ZeroRows<kRows, kDim>(base + static_cast<unsigned>(tile), rows);
  }
};

// Run() is called by one thread for each consumer warpgroup. With dq_ordered or dq_first_stores
// (Arguments), a semaphore per tile of queries and warpgroup orders the blocks.
struct DqAdder {
  const BackwardParams& p;
  const KeyTile& keys;
  unsigned base;  // shared memory
  BackwardBarriers barriers;
  int warpgroup;
  DbiasStore dbias;

  // Returns the step after the last. TmaStoreWait() must follow.
  __device__ __forceinline__ int Run(int first_step = 0) const {
    const auto visit = [&](int step, int head, int i0) {
      barriers.Wait(BackwardBarriers::kDqReady + warpgroup, step);
      if constexpr (kStoresDbias) dbias.Store(step % kStages, head, i0);
      Turn turn;
      if (p.common.dq_accum.base != nullptr && !keys.list.IsSole(i0 / kTileQ)) {
        turn = Acquire(head, i0);
        if (turn.is_first) {
          Copy<true>(head, i0);
        } else {
          Copy<false>(head, i0);
        }
      }
      ptx::TmaStoreCommit();
      ptx::TmaStoreWaitRead();
      barriers.Arrive(BackwardBarriers::kDqFree + warpgroup);
      if (turn.semaphore != nullptr) Release(turn);
    };
    return ForEachTile(p.common, keys, visit, first_step);
  }

 private:
  struct Turn {
    unsigned* semaphore = nullptr;  // null: no block waits for this one
    unsigned release = 0;           // what to add to it
    bool is_first = false;          // stores instead of adding: dq_accum is not initialized yet
  };
  static constexpr unsigned kStored = 1u << 31;

  template <bool kStores>
  __device__ __forceinline__ void Copy(int head, int i0) const {
    const Arguments& a = p.common;
    const unsigned staged =
        base + kShared.dq + static_cast<unsigned>(warpgroup * 4 * kDqPieceBytes);
    const int row = i0 + kDqRows * warpgroup;
    float* const to =
        reinterpret_cast<float*>(shared::RowAddress(
            a.dq_accum, keys.seq.idx, shared::DqAccumFirstRow(a, keys.seq) + row, head)) +
        16 * kDqColumns * warpgroup;
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      if (row + 16 * w >= keys.seq.len_q) break;
      const unsigned piece = staged + static_cast<unsigned>(w * kDqPieceBytes);
      if constexpr (kStores) {
        ptx::BulkStore(to + 16 * w * kDim, piece, kDqPieceBytes);
      } else {
        ptx::BulkAdd(to + 16 * w * kDim, piece, kDqPieceBytes);
      }
    }
  }

  // With dq_ordered: waits for the blocks that add to the tile of queries before this one, in the
  // order of BlockPlace; the semaphore counts them. With dq_first_stores alone, the
  // order is free: the semaphore counts the blocks that have arrived, and grows by kStored once the
  // first block has stored.
  __device__ __forceinline__ Turn Acquire(int head, int i0) const {
    const Arguments& a = p.common;
    if (a.dq_semaphore == nullptr) return {};
    const long long tiles = (a.max_len_q + kTileQ - 1) / kTileQ;
    const long long tile = (1ll * keys.seq.idx * a.heads_q + head) * tiles + i0 / kTileQ;
    unsigned* const semaphore = a.dq_semaphore + kWarpgroups * tile + warpgroup;
    unsigned awaited = kStored;
    if (a.dq_ordered != 0) {
      awaited = static_cast<unsigned>(keys.NumBefore(a, i0));
    } else if (atomicAdd(semaphore, 1u) == 0) {
      return {semaphore, kStored, true};
    }
    while (ptx::LoadAcquire(semaphore) < awaited) {
    }
    ptx::FenceAsyncProxyGlobal();
    if (a.dq_ordered == 0) return {};
    return {semaphore, 1, a.dq_first_stores != 0 && awaited == 0};
  }
  __device__ __forceinline__ static void Release(const Turn& turn) {
    ptx::TmaStoreWait();
    ptx::FenceAsyncProxyGlobal();
    ptx::AddRelease(turn.semaphore, turn.release);
  }
};

}  // namespace sm90
