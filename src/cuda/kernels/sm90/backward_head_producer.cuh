// The producer warpgroup of sm90/backward_head.cu:
//   HeadLoader   warp 0: loads K, V of each tile of keys, Q, dO and O of each step, by TMA
//   RowComputer  warps 1 and 2: compute delta = dot(dO, O) - dlse and lse of a head's queries
#pragma once
#include "ptx/memory.cuh"
#include "ptx/mma.cuh"
#include "ptx/tma.cuh"
#include "shared/score.cuh"
#include "sm90/backward_head_barriers.cuh"
#include "sm90/backward_loads.cuh"

namespace sm90 {

// Run() is called by one thread.
struct HeadLoader {
  const BackwardParams& p;
  unsigned base;  // shared memory
  HeadBarriers barriers;

  __device__ __forceinline__ void Run() const {
    int step = 0;
    int num_o = 0;
    ForEachKeyTile(p, [&](const KeyTile& keys, int, int tile) {
      const int first = step;
      step = ForEachTile(
          p.common, keys,
          [&](int at, int head, int i0) {
            LoadQueries(keys, at, head, i0);
            if (p.common.delta.base == nullptr && keys.IsFirstVisitor(i0)) {
              barriers.Wait(HeadBarriers::kOFree, num_o + 1);
              TileLoads{p, keys, base}.Queries<kDim>(&p.o, kShared.o,
                                                     barriers.At(HeadBarriers::kOReady), head, i0);
              ++num_o;
            }
            if (at == first) LoadKeys(keys, tile);
          },
          first);
      if (step == first) LoadKeys(keys, tile);  // consumers wait for K and V all the same
    });
  }

 private:
  __device__ __forceinline__ void LoadQueries(const KeyTile& keys, int step, int head,
                                              int i0) const {
    const TileLoads loads{p, keys, base};
    const int stage = step % kStages;
    barriers.Wait(HeadBarriers::kQFree + stage, step / kStages + 1);
    loads.Queries<kDim>(&p.q, kShared.q + stage * kQBytes,
                        barriers.At(HeadBarriers::kQReady + stage), head, i0);
    barriers.Wait(HeadBarriers::kDoutFree + stage, step / kStages + 1);
    loads.Queries<kDim>(&p.dout, kShared.dout + stage * kQBytes,
                        barriers.At(HeadBarriers::kDoutReady + stage), head, i0);
  }
  // Loads K and V, 64 keys for each warpgroup, once it has read those of the previous tile.
  __device__ __forceinline__ void LoadKeys(const KeyTile& keys, int tile) const {
    constexpr int kBytes = 64 * 128;
#pragma unroll 1
    for (int w = 0; w < kWarpgroups; ++w) {
      barriers.Wait(HeadBarriers::kKvFree + w, tile + 1);
      const unsigned ready = barriers.At(HeadBarriers::kKvReady + w);
      ptx::BarrierExpect(ready, 2 * kBytes);
      const auto load = [&](const void* map, int to) {
        ptx::TmaLoad(base + static_cast<unsigned>(to + w * kBytes), map, ready, 0, keys.j0 + 64 * w,
                     keys.head_kv, keys.seq.idx, ptx::kEvictFirst);
      };
      load(&p.k, kShared.k);
      load(&p.v, kShared.v);
    }
  }
};

// Each warp has 32 rows of each tile of queries. Rows are computed for the first tile of keys that
// visits them, and stay in shared memory for the others. Rows that are past the length or see no
// key get {inf, 0}, so that their P and dS are 0. The scale of P is folded in: lse - kPShift scales
// P up, and delta / kPScale compensates for it in dS.
struct RowComputer {
  const BackwardParams& p;
  unsigned base;  // shared memory
  HeadBarriers barriers;
  int warp;  // 0, 1

  __device__ __forceinline__ void Run() const {
    int step = 0;
    int num_o = 0;
    ForEachKeyTile(p, [&](const KeyTile& keys, int n, int) {
      step = ForEachTile(
          p.common, keys,
          [&](int at, int head, int i0) {
            const int stage = at % kStages;
            if (!keys.IsFirstVisitor(i0)) {
              barriers.Wait(HeadBarriers::kDoutReady + stage, at / kStages);
              barriers.ArriveByWarp(HeadBarriers::kDoutFree + stage);
              return;
            }
            float2 row = LoadRow(keys, head, i0 + Row());
            barriers.Wait(HeadBarriers::kDoutReady + stage, at / kStages);
            if (p.common.delta.base == nullptr) {
              barriers.Wait(HeadBarriers::kOReady, num_o);
              const float dot = Dot(stage);
              barriers.ArriveByWarp(HeadBarriers::kOFree);
              if (row.x != shared::kInfinity) row.y += dot;
              ++num_o;
            }
            barriers.ArriveByWarp(HeadBarriers::kDoutFree + stage);
            if (n > 0) barriers.Wait(HeadBarriers::kRowsFree, n - 1);
            const unsigned to = base + static_cast<unsigned>(4 * (i0 + Row()));
            ptx::StoreShared32(to + kShared.lse, row.x - kPShift);
            ptx::StoreShared32(to + kShared.delta, row.y / kPScale);
            // Every lane arrives, after its own stores.
            ptx::BarrierArrive(barriers.At(HeadBarriers::kRowsReady + i0 / kTileQ));
          },
          step);
    });
  }

 private:
  // Index of this lane's row in a tile.
  __device__ __forceinline__ int Row() const {
    return 32 * warp + static_cast<int>(threadIdx.x) % 32;
  }
  // Returns {lse in units of log2, delta without dot(dO, O)}.
  __device__ __forceinline__ float2 LoadRow(const KeyTile& keys, int head, int i) const {
    const Arguments& a = p.common;
    const auto at = [&](const shared::StridedTensor& tensor) {
      return *reinterpret_cast<const float*>(shared::RowAddress(tensor, keys.seq.idx, i, head));
    };
    if (i >= keys.seq.len_q) return {shared::kInfinity, 0.0f};
    const float lse = at(a.lse);
    float delta = 0.0f;
    if (a.delta.base != nullptr) {
      delta = at(a.delta);
    } else if (a.dlse.base != nullptr) {
      delta = -at(a.dlse);
    }
    if (lse == -shared::kInfinity) return {shared::kInfinity, 0.0f};
    return {lse * shared::kLog2E, delta};
  }
  // The dot product of this lane's rows of dO and O. The swizzle puts the rows of 8 lanes into
  // different banks.
  __device__ __forceinline__ float Dot(int stage) const {
    const unsigned at = static_cast<unsigned>(Row() * 128);
    float dot = 0.0f;
#pragma unroll 2
    for (int chunk = 0; chunk < kDim / 8; ++chunk) {
      const unsigned from = base + at + static_cast<unsigned>((chunk ^ (Row() % 8)) * 16);
      const uint4 o = ptx::LoadShared128(from + kShared.o);
      const uint4 dout = ptx::LoadShared128(from + kShared.dout + stage * kQBytes);
      AddDot(o.x, dout.x, dot);
      AddDot(o.y, dout.y, dot);
      AddDot(o.z, dout.z, dot);
      AddDot(o.w, dout.w, dot);
    }
    return dot;
  }
  __device__ __forceinline__ static void AddDot(unsigned x, unsigned y, float& dot) {
    dot = fmaf(ptx::Low<kDtype>(x), ptx::Low<kDtype>(y), dot);
    dot = fmaf(ptx::High<kDtype>(x), ptx::High<kDtype>(y), dot);
  }
};

}  // namespace sm90
