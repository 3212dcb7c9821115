// A consumer warpgroup of sm90/backward_head.cu: 64 keys of a tile.
//
// Order of a step: issue S and dP; compute P and dS and store dS; issue dV, dQ, dK; add dQ while dK
// is computed. A warpgroup multiplies dS of its own keys by K, so it never waits for the other's
// dS; meanwhile the tensor cores run the other's products. Both add to the same sums of dQ, where a
// thread of each owns the same elements: first the first warpgroup, then the second.
#pragma once
#include "ptx/memory.cuh"
#include "ptx/wgmma.cuh"
#include "sm90/backward_epilogue.cuh"
#include "sm90/backward_gradient.cuh"
#include "sm90/backward_head_barriers.cuh"
#include "sm90/backward_scores.cuh"

namespace sm90 {

struct HeadConsumer : KeyWarpgroup {
  HeadBarriers barriers;
  int head_idx;  // index among the block's heads
  int tile;      // index among the tiles of keys of all the block's heads

  __device__ __forceinline__ HeadConsumer(const BackwardParams& params, const KeyTile& key_tile,
                                          unsigned memory, int group, int n, int tile_idx)
      : KeyWarpgroup(params, key_tile, memory, group),
        barriers(memory),
        head_idx(n),
        tile(tile_idx) {}

  // Computes dk (before the scale) and dv (before its factor), and adds dq. Returns the step after
  // the last.
  __device__ __forceinline__ int Run(int first_step) {
    barriers.Wait(HeadBarriers::kKvReady + warpgroup, tile);
    const auto visit = [&](int step, int head, int i0) { Step(step, head, i0); };
    const int end = ForEachTile(p.common, keys, visit, first_step);
    barriers.ArriveByWarp(HeadBarriers::kKvFree + warpgroup);
    return end;
  }

 private:
  __device__ __forceinline__ void Step(int step, int head, int i0) {
    const int stage = step % kStages;
    const int phase = step / kStages;
    const ptx::MatrixDescriptor q(base + kShared.q + static_cast<unsigned>(stage * kQBytes),
                                  kTileQ * 128);
    const ptx::MatrixDescriptor dout(base + kShared.dout + static_cast<unsigned>(stage * kQBytes),
                                     kTileQ * 128);
    Scores s;
    Scores dp;
    DqPart dq;
    Fragments p_pairs;
    Fragments ds_pairs;
    ScoreOptions options;
    options.Start(p.common, keys.seq, head, i0 + Query(), Key(0));
    barriers.Wait(HeadBarriers::kQReady + stage, phase);
    IssueScores(kShared.k, q, s);
    barriers.Wait(HeadBarriers::kDoutReady + stage, phase);
    IssueScores(kShared.v, dout, dp);
    if constexpr (kDropout) options.drops = DrawDrops(head, i0);
    barriers.Wait(HeadBarriers::kRowsReady + i0 / kTileQ, head_idx);
    ptx::WgmmaWait<1>();
    ModifyScores(options, i0, s);
    ComputeP<false>(i0, i0, s);
    if (!keys.IsFull(i0)) HidePartial(i0, i0, s);
    options.MarkDropped(s);
    ptx::WgmmaWait<0>();
    ComputeDs(options, i0, s, dp, p_pairs, ds_pairs);
    barriers.Wait(HeadBarriers::kDsFree + warpgroup, step + 1);
    StoreDs(0, ds_pairs);
    barriers.ArriveByWarp(HeadBarriers::kDsReady + warpgroup);
    IssueKeyGradient(p_pairs, dout, dv);
    barriers.Wait(HeadBarriers::kDsReady + warpgroup, step);
    IssueDq(dq);
    ptx::WgmmaWait<1>();
    barriers.ArriveByWarp(HeadBarriers::kDoutFree + stage);
    IssueKeyGradient(ds_pairs, q, dk);
    ptx::WgmmaWait<1>();
    barriers.ArriveByWarp(HeadBarriers::kDsFree + warpgroup);
    AddDq(head, i0, dq);
    ptx::WgmmaWait<0>();
    barriers.ArriveByWarp(HeadBarriers::kQFree + stage);
  }

  // dq = dS K of this warpgroup's keys
  __device__ __forceinline__ void IssueDq(DqPart& dq) const {
    const unsigned own = static_cast<unsigned>(warpgroup * 64 * 128);
    const ptx::MatrixDescriptor ds(base + kShared.ds + own, kTileQ * 128);
    const ptx::MatrixDescriptor k(base + kShared.k + own, kTileQ * 128);
    ptx::WgmmaFence();
#pragma unroll
    for (int n = 0; n < 64 / 16; ++n) {
      ptx::WgmmaShared<kDtype, 64, 0, 1>(dq, ds.At(n * 32), k.At(n * 16 * 128), n > 0);
    }
    ptx::WgmmaCommit();
  }

  // Adds this warp's 16 x 64 of dQ, in the layout of dq_accum. The first addition to a tile stores
  // instead; after the last one dq is written. The barrier makes the two warpgroups alternate,
  // within a step and from one step to the next, which may have the same tile of queries: even
  // phases belong to the first warpgroup, odd ones to the second.
  __device__ __forceinline__ void AddDq(int head, int i0, DqPart& dq) const {
    const unsigned at =
        base + kShared.dq + static_cast<unsigned>(i0 * kDim * 4 + warp * kDqPieceBytes + 16 * lane);
    const bool is_first = warpgroup == 0;
    barriers.Wait(HeadBarriers::kDqAdded + warp, 1 - warpgroup);
    if (!is_first || !keys.IsFirstVisitor(i0)) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const uint4 sum = ptx::LoadShared128(at + i * 512);
        dq[4 * i] += __uint_as_float(sum.x);
        dq[4 * i + 1] += __uint_as_float(sum.y);
        dq[4 * i + 2] += __uint_as_float(sum.z);
        dq[4 * i + 3] += __uint_as_float(sum.w);
      }
    }
    const bool is_last = !is_first && keys.NumLaterVisitors(p.common, i0) == 0;
    if (!is_last) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        ptx::StoreShared128(at + i * 512, dq[4 * i], dq[4 * i + 1], dq[4 * i + 2], dq[4 * i + 3]);
      }
    }
    // Every lane arrives, after its own accesses.
    ptx::BarrierArrive(barriers.At(HeadBarriers::kDqAdded + warp));
    if (is_last) WriteDq(head, i0, dq);
  }
  __device__ __forceinline__ void WriteDq(int head, int i0, const DqPart& dq) const {
    const Arguments& a = p.common;
    const GradientRows rows{a,       a.dq,    keys.seq.idx, head, keys.seq.first_q, keys.seq.rows_q,
                            a.scale, a.dim_qk};
    rows.Write(i0 + 16 * warp + lane / 4, dq);
  }
};

}  // namespace sm90
