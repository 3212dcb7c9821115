// The producer of sm90/backward_wide.cu: one thread loads K, V once, then Q and dO of each step, by
// TMA.
#pragma once
#include "ptx/tma.cuh"
#include "sm90/backward_wide_barriers.cuh"
#include "sm90/backward_wide_tile.cuh"

namespace sm90 {

struct WideLoader {
  const BackwardParams& p;
  const WideKeyTile& keys;
  unsigned base;  // shared memory
  WideBarriers barriers;

  __device__ __forceinline__ void Run() const {
    LoadKeys<kDim>(&p.k, kShared.k, WideBarriers::kKReady);
    keys.ForEachTile(p.common, [&](const Visit& visit) {
      const int step = visit.step;
      const int stage = step % kQStages;
      const int dout = step % kDoutStages;
      barriers.Wait(WideBarriers::kQFree + stage, step / kQStages + 1);
      LoadQueries<kDim>(&p.q, kShared.q + stage * kQBytes, WideBarriers::kQReady + stage, visit);
      if (step == 0) LoadKeys<kDimVo>(&p.v, kShared.v, WideBarriers::kVReady);
      barriers.Wait(WideBarriers::kDoutFree + dout, step / kDoutStages + 1);
      LoadQueries<kDimVo>(&p.dout, kShared.dout + dout * kDoutBytes,
                          WideBarriers::kDoutReady + dout, visit);
    });
  }

 private:
  template <int kColumns>
  __device__ __forceinline__ void LoadKeys(const void* map, int to, int ready) const {
    ptx::BarrierExpect(barriers.At(ready), kTileKv * kColumns * kOperandBytes);
#pragma unroll
    for (int c = 0; c < kColumns / 64; ++c) {
      ptx::TmaLoad(base + to + c * kTileKv * 128, map, barriers.At(ready), c * 64, keys.j0,
                   keys.head_kv, keys.seq.idx, ptx::kEvictFirst);
    }
  }
  template <int kColumns>
  __device__ __forceinline__ void LoadQueries(const void* map, int to, int ready,
                                              const Visit& visit) const {
    ptx::BarrierExpect(barriers.At(ready), kTileQ * kColumns * kOperandBytes);
#pragma unroll
    for (int c = 0; c < kColumns / 64; ++c) {
      ptx::TmaLoad(base + to + c * kTileQ * 128, map, barriers.At(ready), c * 64, visit.i0,
                   visit.head, keys.seq.idx, ptx::kEvictLast);
    }
  }
};

}  // namespace sm90
