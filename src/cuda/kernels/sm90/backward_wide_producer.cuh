// The producer of sm90/backward_wide.cu, one role per warp:
//   WideLoader   loads K, V once, then Q, dO, bias and mask of each step, by TMA
//   WideOrderer  deterministic: waits until a consumer warpgroup may add dQ, a warp each
//   WideZeroer   with lengths: zeroes rows past the end of a sequence
#pragma once
#include "sm90/backward_loads.cuh"
#include "sm90/backward_wide_barriers.cuh"
#include "sm90/backward_wide_tile.cuh"

namespace sm90 {

// Run() is called by one thread.
struct WideLoader {
  const BackwardParams& p;
  const WideKeyTile& keys;
  unsigned base;  // shared memory
  WideBarriers barriers;

  __device__ __forceinline__ void Run() const {
    const TileLoads loads{p, keys, base, Rank()};
    loads.Keys<kDim>(&p.k, kShared.k, barriers.At(WideBarriers::kKReady));
    keys.ForEachVisit(p.common, [&](const Visit& visit) {
      const int step = visit.step;
      const int stage = step % kQStages;
      const int dout = step % kDoutStages;
      barriers.Wait(WideBarriers::kQFree + stage, step / kQStages + 1);
      loads.Queries<kDim>(&p.q, kShared.q + stage * kQBytes,
                          barriers.At(WideBarriers::kQReady + stage), visit.head, visit.i0);
      if (step == 0) loads.Keys<kDimVo>(&p.v, kShared.v, barriers.At(WideBarriers::kVReady));
      if constexpr (kScoreTiles) {  // a single stage, which becomes free early in a step
        barriers.Wait(WideBarriers::kScoresFree, step + 1);
        loads.Scores(kShared.score, barriers.At(WideBarriers::kScoresReady), visit.head, visit.i0);
      }
      barriers.Wait(WideBarriers::kDoutFree + dout, step / kDoutStages + 1);
      loads.Queries<kDimVo>(&p.dout, kShared.dout + dout * kDoutBytes,
                            barriers.At(WideBarriers::kDoutReady + dout), visit.head, visit.i0);
    });
  }
};

// With kDeterministic: blocks add to a tile of dQ in the order in which they start (BlockPlace). A
// semaphore for each tile of queries, warpgroup and block of a cluster counts the blocks that have
// added. The
// consumers do not access it themselves: a read or a release at the scope of the device takes about
// 1 us, a quarter of a step.
//
// Run() is called by one thread for each consumer warpgroup.
struct WideOrderer {
  const BackwardParams& p;
  const WideKeyTile& keys;
  WideBarriers barriers;
  int warpgroup;

  __device__ __forceinline__ void Run() const {
    const Arguments& a = p.common;
    const long long tiles = (a.max_len_q + kTileQ - 1) / kTileQ;
    keys.ForEachVisit(a, [&](const Visit& visit) {
      const long long tile =
          (1ll * keys.seq.idx * a.heads_q + visit.head) * tiles + visit.i0 / kTileQ;
      unsigned* const semaphore = a.dq_semaphore + (2 * tile + warpgroup) * kCluster + Rank();
      const auto num_before = static_cast<unsigned>(keys.NumBefore(a, visit.i0));
      while (ptx::LoadAcquire(semaphore) < num_before) {
      }
      ptx::BarrierArrive(barriers.At(WideBarriers::kTurn + warpgroup));
      barriers.Wait(WideBarriers::kAdded + warpgroup, visit.step);
      ptx::AddRelease(semaphore, 1);
    });
  }
};

// Run() is called by a warp. Consumers wait for kRowsReady before they multiply.
struct WideZeroer {
  const BackwardParams& p;
  const WideKeyTile& keys;
  unsigned base;  // shared memory
  WideBarriers barriers;

  __device__ __forceinline__ void Run() const {
    keys.ForEachVisit(p.common, [&](const Visit& visit) {
      const int stage = visit.step % kQStages;
      const int dout = visit.step % kDoutStages;
      if (visit.step == 0 && keys.j0 + kTileKv > keys.seq.len_kv) {
        const int rows = keys.seq.len_kv - keys.j0;
        barriers.Wait(WideBarriers::kKReady, 0);
        ZeroRows<kTileKv, kDim>(base + kShared.k, rows);
        barriers.Wait(WideBarriers::kVReady, 0);
        ZeroRows<kTileKv, kDimVo>(base + kShared.v, rows);
      }
      // Waits for full tiles too: a barrier knows only whether a phase is even, so that a warp that
      // left out a phase could take the one before for the one that it waits for.
      barriers.Wait(WideBarriers::kQReady + stage, visit.step / kQStages);
      barriers.Wait(WideBarriers::kDoutReady + dout, visit.step / kDoutStages);
      if (visit.i0 + kTileQ > keys.seq.len_q) {
        const int rows = keys.seq.len_q - visit.i0;
        ZeroRows<kTileQ, kDim>(base + static_cast<unsigned>(kShared.q + stage * kQBytes), rows);
        ZeroRows<kTileQ, kDimVo>(base + static_cast<unsigned>(kShared.dout + dout * kDoutBytes),
                                 rows);
      }
      barriers.WarpArrives(WideBarriers::kRowsReady + stage, ptx::RereadThreadIdx() % 32);
    });
  }
};

}  // namespace sm90
