// The consumer warpgroup of sm90/backward_wide.cu that computes dP, dS and dK.
#pragma once
#include "ptx/math.cuh"
#include "sm90/backward_wide_consumer.cuh"

namespace sm90 {

struct KeyConsumer : WideConsumer<kDim> {
  static constexpr int kFirstDqPart = kDim / 128;
  static constexpr int kDqParts = kDim / 64 - kFirstDqPart;

  __device__ __forceinline__ KeyConsumer(const BackwardParams& params, const WideKeyTile& tile,
                                         unsigned memory)
      : WideConsumer(params, tile, memory) {}

  // Computes dK, before the scale, in sums.
  __device__ __forceinline__ void Run() {
    barriers.Wait(WideBarriers::kKReady, 0);
    keys.ForEachVisit(p.common, [&](const Visit& visit) { Step(visit); });
  }

 private:
  __device__ __forceinline__ void Step(const Visit& visit) {
    const int step = visit.step;
    const int stage = step % kQStages;
    const int dout = step % kDoutStages;
    Scores dp;
    WaitForRows(visit);  // for full tiles too: testing for them takes registers
    barriers.Wait(WideBarriers::kVReady, 0);
    barriers.Wait(WideBarriers::kDoutReady + dout, step / kDoutStages);
    IssueScores<kDimVo>(kShared.dout + dout * kDoutBytes, kShared.v, dp);
    const int i = Query(visit.i0);
    const float delta[2] = {LoadRow(1, visit.head, i, 0.0f) / kPScale,
                            LoadRow(1, visit.head, i + 8, 0.0f) / kPScale};
    ptx::WgmmaWait<0>();
    Release(WideBarriers::kDoutFree + dout);
    AddPeersPart(kShared.dp, WideBarriers::kDpReady, WideBarriers::kDpFree, step, dp);
    if constexpr (kCluster > 1) barriers.ArriveAtPeer(WideBarriers::kDpFree + Warp());
    StoreDs(step, delta, dp);
    barriers.Wait(WideBarriers::kDsReady + step % kDsStages, step / kDsStages);
    AddDqUnderGradient<kFirstDqPart, kDqParts>(visit, kShared.q + stage * kQBytes, DsAt(step), [&] {
      barriers.Wait(WideBarriers::kQReady + stage, step / kQStages);
    });
    Release(WideBarriers::kDsFree + step % kDsStages);
    Release(WideBarriers::kQFree + stage);
  }

  // dS = P (dP - delta), rounded; P is from ValueConsumer::StoreP. Loads 16 keys at a time, because
  // the compiler would otherwise load all of P at once.
  __device__ __forceinline__ void StoreDs(int step, const float (&delta)[2],
                                          const Scores& dp) const {
    ptx::NamedBarrierWait(ExactReady(), kThreadsOfTwoWarps);
    barriers.Wait(WideBarriers::kDsFree + step % kDsStages, step / kDsStages + 1);
    const unsigned exact = ExactAt();
    const unsigned to = PairsAt(base + static_cast<unsigned>(DsAt(step)));
    uint4 words[2] = {ptx::LoadShared128(exact), ptx::LoadShared128(exact + kExactStep)};
#pragma unroll
    for (int i = 0; i < kTileKv / 16; ++i) {
      const float probabilities[8] = {__uint_as_float(words[0].x), __uint_as_float(words[0].y),
                                      __uint_as_float(words[0].z), __uint_as_float(words[0].w),
                                      __uint_as_float(words[1].x), __uint_as_float(words[1].y),
                                      __uint_as_float(words[1].z), __uint_as_float(words[1].w)};
      if (i + 1 < kTileKv / 16) {
        words[0] = ptx::LoadShared128(exact + kExactStep * (2 * i + 2));
        words[1] = ptx::LoadShared128(exact + kExactStep * (2 * i + 3));
      } else if constexpr (kCluster > 1) {
        barriers.ArriveAtPeer(WideBarriers::kExactFree + Warp());
      } else {
        ptx::BarrierArrive(barriers.At(WideBarriers::kExactFree + Warp()));
      }
      unsigned pairs[4];
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const auto ds = [&](int e) {
          const float probability = probabilities[2 * n + e];
          float factor = 1 / kPScale;
          if constexpr (kDropout) {
            factor = ScoreTerms::Kept(probability) * (p.common.keep_scale / kPScale);
          }
          return fabsf(probability) * fmaf(dp[8 * i + 2 * n + e], factor, -delta[n % 2]);
        };
        pairs[n] = ptx::Pack<kDtype>(ds(0), ds(1));
      }
      StorePairs(to, i, pairs);
    }
    ptx::FenceAsyncProxy();
    Release(WideBarriers::kDsReady + step % kDsStages);
  }
};

}  // namespace sm90
