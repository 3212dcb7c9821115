// The consumer warpgroup of sm90/backward_wide.cu that computes S, P and dV.
#pragma once
#include "ptx/math.cuh"
#include "sm90/backward_wide_consumer.cuh"
#include "sm90/score_tile.cuh"

namespace sm90 {

struct ValueConsumer : WideConsumer<kDimVo> {
  static constexpr int kDqParts = kDim / 128;  // from column 0; KeyConsumer computes the rest
  float scale;                                 // of raw products, times log2(e)
  Visit last{-1, 0, 0};                        // with row_ranges: the previous visit

  __device__ __forceinline__ ValueConsumer(const BackwardParams& params, const WideKeyTile& tile,
                                           unsigned memory)
      : WideConsumer(params, tile, memory), scale(params.common.scale * shared::kLog2E) {}

  // Computes dV, times kPScale, in `sums`.
  __device__ __forceinline__ void Run() {
    barriers.Wait(WideBarriers::kKReady, 0);
    keys.ForEachVisit(p.common, [&](const Visit& visit) {
      Step(visit);
      if constexpr (kRowRanges) last = visit;
    });
    const Visit final = kRowRanges ? last : keys.Last(p.common);
    if (final.step < 0) return;
    AddLastDq(final);
  }

 private:
  using BiasLayout =
      ScoreLayoutOf<kBiasBytes == 0 ? 2 : kBiasBytes, kTileKv, kBiasRow || kBiasBytes == 0>::Type;
  using MaskLayout = ScoreLayoutOf<1, kTileKv, kMaskRow || kMaskBytes == 0>::Type;

  __device__ __forceinline__ void WaitForDs(const Visit& visit) const {
    barriers.Wait(WideBarriers::kDsReady + visit.step % kDsStages, visit.step / kDsStages);
  }
  __device__ __forceinline__ void WaitForDvOperands(const Visit& visit) const {
    barriers.Wait(WideBarriers::kPReady, visit.step);
    barriers.Wait(WideBarriers::kDoutReady + visit.step % kDoutStages, visit.step / kDoutStages);
  }

  // Computes P and dV of a visit, and dQ of the previous one: KeyConsumer stored its dS long
  // before.
  __device__ __forceinline__ void Step(const Visit& visit) {
    const int stage = visit.step % kQStages;
    Scores s;
    ScoreTerms terms;
    barriers.Wait(WideBarriers::kQReady + stage, visit.step / kQStages);
    // After the wait for Q: this warpgroup leaves out the waits of full tiles, so that until Q has
    // arrived the zeroing of an earlier step may be outstanding, and a barrier knows only whether a
    // phase is even.
    if (kLengths && !keys.IsFull(visit.i0)) WaitForRows(visit);
    IssueScores<kDim>(kShared.q + stage * kQBytes, kShared.k, s);
    const int i = Query(visit.i0);
    const float lse[2] = {LoadRow(0, visit.head, i, shared::kInfinity) - kPShift,
                          LoadRow(0, visit.head, i + 8, shared::kInfinity) - kPShift};
    terms.Start(p.common, keys.seq, visit.head, i, keys.j0 + Column());
    if constexpr (kScoreTiles) barriers.Wait(WideBarriers::kScoresReady, visit.step);
    ptx::WgmmaWait<0>();
    Release(WideBarriers::kQFree + stage);
    AddPeersPart(kShared.exact, WideBarriers::kSReady, WideBarriers::kExactFree, visit.step, s);
    ModifyScores(terms, lse, s);
    ComputeP(lse, s);
    if (!keys.IsFull(visit.i0)) HidePartial(visit.i0, s);
    if constexpr (kMaskBytes > 0) HideByMask(s);
    if constexpr (kScoreTiles && !kRereadsBias) Release(WideBarriers::kScoresFree);
    StoreP(terms, visit, lse, s);
    const int dout_stage = visit.step % kDoutStages;
    const int dout = kShared.dout + dout_stage * kDoutBytes;
    if (visit.step > 0) {
      const Visit previous = kRowRanges ? last : keys.Previous(visit);
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
    EndTurn();
  }

  // Elements 4 i + 2 h + e of s belong to query Query() + 8 h and key 8 i + Column() + e of the
  // tile.
  __device__ __forceinline__ static int Column() { return 2 * (Lane() % 4); }

  // Applies softcap, ALiBi and bias: turns raw products into log2(P).
  __device__ __forceinline__ void ModifyScores(const ScoreTerms& terms, const float (&lse)[2],
                                               Scores& s) const {
    if constexpr (kHasScoreMod) {
      if (ScoreTerms::InSeries(p.common, s)) {
        ModifyAll<true>(terms, lse, s);
      } else {
        ModifyAll<false>(terms, lse, s);
      }
    }
  }
  template <bool in_series>
  __device__ __forceinline__ void ModifyAll(const ScoreTerms& terms, const float (&lse)[2],
                                            Scores& s) const {
#pragma unroll
    for (int i = 0; i < kTileKv / 8; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float2 bias = LoadBias(i, h);
        float& x = s[4 * i + 2 * h];
        float& y = s[4 * i + 2 * h + 1];
        x = terms.Score<in_series>(p.common, x, 8 * h, 8 * i, bias.x, -lse[h]);
        y = terms.Score<in_series>(p.common, y, 8 * h, 8 * i + 1, bias.y, -lse[h]);
      }
  }

  // Loads the bias of elements 4 i + 2 h and 4 i + 2 h + 1.
  __device__ __forceinline__ float2 LoadBias(int i, int h) const {
    if constexpr (kBiasBytes == 0) return {};
    return BiasLayout::Floats<config::bias_type>(base + kShared.score, Query(0) + 8 * h,
                                                 8 * i + Column());
  }

  // Computes P in f32. With softcap s stays log2(P), since the derivative follows from it.
  __device__ __forceinline__ void ComputeP(const float (&lse)[2], Scores& s) const {
#pragma unroll
    for (int i = 0; i < kTileKv / 8; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float& x = s[4 * i + e];
        if constexpr (!kHasScoreMod) x = fmaf(x, scale, -lse[e / 2]);
        if constexpr (!kSoftcap) x = ptx::Exp2(x);
      }
  }

  static constexpr float kHidden = kSoftcap ? -shared::kInfinity : 0.0f;

  // The keys that query i sees, relative to the tile's first key.
  __device__ __forceinline__ shared::KeyRange VisibleKeys(int i) const {
    const Sequence& seq = keys.seq;
    if constexpr (kRowRanges) {
      if (i >= seq.len_q) return {0, 0};
      const Arguments& a = p.common;
      const long long first = a.packed_q != 0 ? seq.first_q : 1ll * seq.idx * a.max_len_q;
      const int2 range = reinterpret_cast<const int2*>(a.row_ranges)[first + i];
      return {range.x - keys.j0, range.y - keys.j0};
    }
    int end = min(i - keys.band.low + 1, seq.len_kv) - keys.j0;
    // Bias past a sequence's end may contain anything, so lse = inf alone does not make P 0.
    if (kLengths && kBiasBytes > 0 && i >= seq.len_q) end = 0;
    return {i - keys.band.high - keys.j0, end};
  }
  // Sets scores (or P) of keys that a query does not see to kHidden.
  __device__ __forceinline__ void HidePartial(int i0, Scores& s) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const shared::KeyRange range = VisibleKeys(Query(i0) + 8 * h);
      const int begin = range.begin - Column();
      const int end = range.end - Column();
#pragma unroll
      for (int n = 0; n < kTileKv / 8; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int key = 8 * n + e;
          float& x = s[4 * n + 2 * h + e];
          if (key >= end) x = kHidden;
          if ((config::left_bound != 0 || kRowRanges) && key < begin) x = kHidden;
        }
    }
  }
  __device__ __forceinline__ void HideByMask(Scores& s) const {
#pragma unroll
    for (int i = 0; i < kTileKv / 8; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const unsigned pair = MaskLayout::Bytes(base + kShared.score + kTilesOfScores.mask,
                                                Query(0) + 8 * h, 8 * i + Column());
        if ((pair & 0xff) == 0) s[4 * i + 2 * h] = kHidden;
        if ((pair & 0xff00) == 0) s[4 * i + 2 * h + 1] = kHidden;
      }
  }

  // Stores P twice. For dS: in f32, times the derivative of softcap, with the sign set for elements
  // that dropout drops. For dV: rounded, and 0 for dropped elements.
  __device__ __forceinline__ void StoreP(const ScoreTerms& terms, const Visit& visit,
                                         const float (&lse)[2], Scores& s) const {
    // In a cluster, the other block's part of S has arrived there, after P had been read.
    if constexpr (kCluster == 1) barriers.Wait(WideBarriers::kExactFree + Warp(), visit.step + 1);
    const unsigned exact = ExactAt();
    shared::DropoutBits bits[2];
#pragma unroll
    for (int i = 0; i < kTileKv / 8; ++i) {
      if (kDropout && i % 4 == 0) {
        shared::GenerateBits(terms.dropout, visit.i0 + 16 * Warp(), keys.j0 + 8 * i, bits[0],
                             bits[1]);
      }
      float for_ds[4];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        unsigned keeps = 0;
        float2 bias{};
        if constexpr (kRereadsBias) bias = LoadBias(i, h);
        if constexpr (kDropout) {
          keeps = shared::KeepFactors<false>(terms.dropout, bits[i / 2 % 2], i % 2, h);
        }
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& x = s[4 * i + 2 * h + e];
          float& exact_x = for_ds[2 * h + e];
          if constexpr (kSoftcap) {
            const float slope =
                terms.Slope(p.common, x, lse[h], 8 * h, 8 * i + e, e == 0 ? bias.x : bias.y);
            x = ptx::Exp2(x);
            exact_x = x * slope;
          } else {
            exact_x = x;
          }
          if constexpr (kDropout) {
            exact_x = ScoreTerms::WithSign(exact_x, keeps << (e == 0 ? 18 : 2));
            if (__float_as_int(exact_x) < 0) x = 0.0f;
          }
        }
      }
      ptx::StoreShared128(exact + kExactStep * i, for_ds[0], for_ds[1], for_ds[2], for_ds[3]);
    }
    if constexpr (kRereadsBias) Release(WideBarriers::kScoresFree);
    ptx::NamedBarrierArrive(ExactReady(), kThreadsOfTwoWarps);
    barriers.Wait(WideBarriers::kPFree, visit.step + 1);
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
