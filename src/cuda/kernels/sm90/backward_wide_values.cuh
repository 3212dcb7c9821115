// The consumer warpgroup of sm90/backward_wide.cu that computes S, P and dV.
#pragma once
#include "ptx/math.cuh"
#include "sm90/backward_wide_consumer.cuh"

namespace sm90 {

struct ValueConsumer : WideConsumer<kDimVo> {
  static constexpr int kDqParts = kDim / 128;  // from column 0; KeyConsumer has the others
  static_assert(kDqParts <= 2);
  // With two stages of dS a visit adds dQ of the one before: KeyConsumer has long stored its dS,
  // and the additions pass under dV.
  static constexpr bool kLate = kDsStages > 1;
  float scale;  // of raw products, times log2(e)

  __device__ __forceinline__ ValueConsumer(const BackwardParams& params, const WideKeyTile& tile,
                                           unsigned memory)
      : WideConsumer(params, tile, memory), scale(params.common.scale * shared::kLog2E) {}

  // Computes dV, times kPScale, in sums.
  __device__ __forceinline__ void Run() {
    barriers.Wait(WideBarriers::kKReady, 0);
    keys.ForEachTile(p.common, [&](int step, int head, int i0) {
      const Visit visit{step, head, i0};
      if (kLate && step > 0) {
        Step<true>(visit);
      } else {
        Step<false>(visit);
      }
    });
    const int num_visits = keys.NumVisits(p.common);
    if (num_visits == 0) return;
    if constexpr (kLate) {
      const int end_head = (keys.head_kv + 1) * p.common.heads_per_kv;
      const Visit last = Previous({num_visits, end_head, keys.tile_begin * kTileQ});
      WaitForDs(last);
      DqPart dq;
      IssueDq(0, DsAt(last.step), dq);
      FinishDq(last, dq);
    }
    // No barrier is left half full.
    ptx::NamedBarrierWait(ExactFree(), kThreadsOfTwoWarps);
  }

 private:
  struct Visit {
    int step;
    int head;
    int i0;
  };

  __device__ __forceinline__ void WaitForDs(const Visit& visit) const {
    barriers.Wait(WideBarriers::kDsReady + visit.step % kDsStages, visit.step / kDsStages);
  }

  // The visit before one.
  __device__ __forceinline__ Visit Previous(const Visit& visit) const {
    if (visit.i0 > keys.tile_begin * kTileQ) {
      return {visit.step - 1, visit.head, visit.i0 - kTileQ};
    }
    return {visit.step - 1, visit.head - 1, (keys.tile_end - 1) * kTileQ};
  }

  // P and dV of a visit. With kLate and kHasLast also dQ of the last one; without kLate its own.
  template <bool kHasLast>
  __device__ __forceinline__ void Step(const Visit& visit) {
    const int stage = visit.step % kQStages;
    Scores s;
    barriers.Wait(WideBarriers::kQReady + stage, visit.step / kQStages);
    IssueScores<kDim>(kShared.q + stage * kQBytes, kShared.k, s);
    const int i = Query(visit.i0);
    const float lse[2] = {LoadRow(0, visit.head, i, shared::kInfinity) - kPShift,
                          LoadRow(0, visit.head, i + 8, shared::kInfinity) - kPShift};
    ptx::WgmmaWait<0>();
    Release(WideBarriers::kQFree + stage);
    ComputeP(lse, s);
    if (!keys.IsFull(visit.i0)) Mask(visit.i0, s);
    StoreP(visit.step, s);
    if constexpr (!kLate) {
      DqPart dq;
      IssueDv(visit);
      WaitForDs(visit);
      IssueDq(0, DsAt(visit.step), dq);
      ptx::WgmmaWait<1>();
      ReleaseDv(visit);
      FinishDq(visit, dq);
    } else if constexpr (kHasLast) {
      DqPart dq;
      const Visit last = Previous(visit);
      WaitForDs(last);
      IssueDq(0, DsAt(last.step), dq);
      IssueDv(visit);
      ptx::WgmmaWait<1>();
      WaitForTurn(last.head, last.i0);
      AddDq(0, last.head, last.i0, dq);
      if constexpr (kDqParts == 2) {
        IssueDq(1, DsAt(last.step), dq);
        ptx::WgmmaWait<1>();
        ReleaseDv(visit);
        ptx::WgmmaWait<0>();
        AddDq(1, last.head, last.i0, dq);
      } else {
        ptx::WgmmaWait<0>();
        ReleaseDv(visit);
      }
      Release(WideBarriers::kDsFree + last.step % kDsStages);
      EndTurn(last.head, last.i0);
    } else {
      IssueDv(visit);
      ptx::WgmmaWait<0>();
      ReleaseDv(visit);
    }
  }

  __device__ __forceinline__ void IssueDv(const Visit& visit) {
    const int dout = visit.step % kDoutStages;
    barriers.Wait(WideBarriers::kPReady, visit.step);
    barriers.Wait(WideBarriers::kDoutReady + dout, visit.step / kDoutStages);
    IssueGradient(kShared.dout + dout * kDoutBytes, kShared.p);
  }
  __device__ __forceinline__ void ReleaseDv(const Visit& visit) const {
    Release(WideBarriers::kDoutFree + visit.step % kDoutStages);
    Release(WideBarriers::kPFree);
  }

  // Adds dQ of a visit, whose first part is in flight.
  __device__ __forceinline__ void FinishDq(const Visit& visit, DqPart& dq) const {
    ptx::WgmmaWait<0>();
    WaitForTurn(visit.head, visit.i0);
    AddDq(0, visit.head, visit.i0, dq);
#pragma unroll
    for (int part = 1; part < kDqParts; ++part) {
      IssueDq(part, DsAt(visit.step), dq);
      ptx::WgmmaWait<0>();
      AddDq(part, visit.head, visit.i0, dq);
    }
    Release(WideBarriers::kDsFree + visit.step % kDsStages);
    EndTurn(visit.head, visit.i0);
  }

  __device__ __forceinline__ void ComputeP(const float (&lse)[2], Scores& s) const {
#pragma unroll
    for (int i = 0; i < kTileKv / 8; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float& x = s[4 * i + e];
        x = ptx::Exp2(fmaf(x, scale, -lse[e / 2]));
      }
  }

  // Zeroes P of keys that a query does not see.
  __device__ __forceinline__ void Mask(int i0, Scores& s) const {
    const int first_key = keys.j0 + 2 * (Lane() % 4);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int i = Query(i0) + 8 * h;
      // The query sees keys [first, last], counted from first_key.
      const int last = min(i - keys.band.low, keys.seq.len_kv - 1) - first_key;
      const int first = i - keys.band.high - first_key;
#pragma unroll
      for (int n = 0; n < kTileKv / 8; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int key = 8 * n + e;
          float& x = s[4 * n + 2 * h + e];
          if (key > last) x = 0.0f;
          if (config::left_bound != 0 && key < first) x = 0.0f;
        }
    }
  }

  // P in f32 for dS, and rounded for dV.
  __device__ __forceinline__ void StoreP(int step, const Scores& s) const {
    if (step > 0) ptx::NamedBarrierWait(ExactFree(), kThreadsOfTwoWarps);
    const unsigned exact = ExactAt();
#pragma unroll
    for (int i = 0; i < kTileKv / 8; ++i) {
      ptx::StoreShared128(exact + kExactStep * i, s[4 * i], s[4 * i + 1], s[4 * i + 2],
                          s[4 * i + 3]);
    }
    ptx::NamedBarrierArrive(ExactReady(), kThreadsOfTwoWarps);
    barriers.Wait(WideBarriers::kPFree, step + 1);
    const unsigned to = PairsAt(base + kShared.p);
#pragma unroll
    for (int i = 0; i < kTileKv / 16; ++i) {
      unsigned pairs[4];
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        pairs[n] = ptx::Pack<kDtype>(s[8 * i + 2 * n], s[8 * i + 2 * n + 1]);
      }
      StorePairs(to, i, pairs);
    }
    ptx::FenceAsyncProxy();
    Release(WideBarriers::kPReady);
  }
};

}  // namespace sm90
