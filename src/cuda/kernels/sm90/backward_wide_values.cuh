// The consumer warpgroup of sm90/backward_wide.cu that computes S, P and dV.
#pragma once
#include "ptx/math.cuh"
#include "sm90/backward_wide_consumer.cuh"

namespace sm90 {

struct ValueConsumer : WideConsumer<kDimVo> {
  static constexpr int kDqParts = kDim / 128;  // from column 0; KeyConsumer has the others
  float scale;                                 // of raw products, times log2(e)

  __device__ __forceinline__ ValueConsumer(const BackwardParams& params, const WideKeyTile& tile,
                                           unsigned memory)
      : WideConsumer(params, tile, memory), scale(params.common.scale * shared::kLog2E) {}

  // Computes dV, times kPScale, in sums.
  __device__ __forceinline__ void Run() {
    barriers.Wait(WideBarriers::kKReady, 0);
    keys.ForEachTile(p.common, [&](const Visit& visit) {
      if (visit.step > 0) {
        Step<true>(visit);
      } else {
        Step<false>(visit);
      }
    });
    if (keys.NumVisits(p.common) == 0) return;
    AddLastDq(keys.Last(p.common));
    // No barrier is left half full.
    ptx::NamedBarrierWait(ExactFree(), kThreadsOfTwoWarps);
  }

 private:
  __device__ __forceinline__ void WaitForDs(const Visit& visit) const {
    barriers.Wait(WideBarriers::kDsReady + visit.step % kDsStages, visit.step / kDsStages);
  }
  __device__ __forceinline__ void WaitForDvOperands(const Visit& visit) const {
    barriers.Wait(WideBarriers::kPReady, visit.step);
    barriers.Wait(WideBarriers::kDoutReady + visit.step % kDoutStages, visit.step / kDoutStages);
  }

  // P and dV of a visit, and dQ of the one before: KeyConsumer has long stored its dS.
  template <bool kHasPrevious>
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
    const int dout_stage = visit.step % kDoutStages;
    const int dout = kShared.dout + dout_stage * kDoutBytes;
    if constexpr (kHasPrevious) {
      const Visit previous = keys.Previous(visit);
      WaitForDs(previous);
      AddDqUnderGradient<0, kDqParts>(previous, dout, kShared.p, [&] { WaitForDvOperands(visit); });
      Release(WideBarriers::kDsFree + previous.step % kDsStages);
    } else {
      WaitForDvOperands(visit);
      IssueGradient(0, kBlocks, dout, kShared.p);
      ptx::WgmmaWait<0>();
    }
    Release(WideBarriers::kDoutFree + dout_stage);
    Release(WideBarriers::kPFree);
  }

  __device__ __forceinline__ void AddLastDq(const Visit& visit) const {
    WaitForDs(visit);
    WaitForTurn(visit);
#pragma unroll
    for (int part = 0; part < kDqParts; ++part) {
      DqPart dq;
      IssueDq(part, DsAt(visit.step), dq);
      ptx::WgmmaWait<0>();
      AddDq(part, visit, dq);
    }
    EndTurn(visit);
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
