// A consumer warpgroup of sm90/backward.cu: 64 keys.
//
// Only dS passes through shared memory, for dQ: each warpgroup computes a part of dQ over all keys
// of the block. P and dS are register operands of dV and dK.
//
// Order of a step:
//   1. issue S and dP
//   2. compute P and dS, store dS
//   3. issue dV
//   4. once both warpgroups have stored dS: issue dQ, then dK
//   5. stage dQ while dK is computed
// Other orders were slower: docs/kernels/sm90_backward.md.
#pragma once
#include "ptx/memory.cuh"
#include "ptx/tma.cuh"
#include "ptx/warpgroup.cuh"
#include "ptx/wgmma.cuh"
#include "sm90/backward_barriers.cuh"
#include "sm90/backward_dbias.cuh"
#include "sm90/backward_gradient.cuh"
#include "sm90/backward_scores.cuh"

namespace sm90 {

struct Consumer : KeyWarpgroup {
  BackwardBarriers barriers;
  int item;  // index among the block's tiles of keys

  __device__ __forceinline__ Consumer(const BackwardParams& params, const KeyTile& tile,
                                      unsigned memory, int group, int item_idx = 0)
      : KeyWarpgroup(params, tile, memory, group), barriers(memory), item(item_idx) {}

  // Computes dk (before the scale) and dv (before its factor), and stages dq for DqAdder. Returns
  // the step after the last.
  __device__ __forceinline__ int Run(int first_step = 0) {
    barriers.Wait(BackwardBarriers::kKReady, item);
    const auto visit = [&](int step, int head, int i0) {
      if (kOneStep || keys.IsFull(i0)) {
        Step<false>(step, head, i0);
      } else {
        Step<true>(step, head, i0);
      }
    };
    const int end = ForEachTile(p.common, keys, visit, first_step);
    if constexpr (kPersistent) {
      if (end == first_step) barriers.Wait(BackwardBarriers::kVReady, item);
      Release(BackwardBarriers::kKvFree);
    }
    if constexpr (kStoresDbias) ptx::NamedBarrierArrive(DqStaged(warpgroup), kDqStagedThreads);
    return end;
  }

 private:
  // Whether full and partial tiles share the code of a step. The time that NVRTC takes halves: with
  // two ways to apply softcap (ModifyScores), two copies of a step would take up to 2.5 s. Others
  // have two copies, which are 1 to 3 % faster.
  static constexpr bool kOneStep = kSoftcap;

  template <bool kPartial>
  __device__ __forceinline__ void Step(int step, int head, int i0) {
    const int stage = step % kStages;
    const int phase = step / kStages;
    const int rows = stage * kTileQ;
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
    if (kLengths && (kOneStep ? !keys.IsFull(i0) : kPartial)) {
      // RowLoader has overwritten rows of all tiles.
      barriers.Wait(BackwardBarriers::kRowsReady + stage, phase);
    }
    barriers.Wait(BackwardBarriers::kQReady + stage, phase);
    IssueScores(kShared.k, q, s);
    barriers.Wait(BackwardBarriers::kVReady, item);
    barriers.Wait(BackwardBarriers::kDoutReady + stage, phase);
    IssueScores(kShared.v, dout, dp);
    if constexpr (kDropout) options.drops = DrawDrops(head, i0);
    barriers.Wait(BackwardBarriers::kRowsReady + stage, phase);
    if constexpr (kScoreTiles) barriers.Wait(BackwardBarriers::kScoresReady, step);
    ptx::WgmmaWait<1>();
    ModifyScores(options, rows, s);
    ComputeP<kPartial>(rows, i0, s);
    if (kOneStep && !keys.IsFull(i0)) HidePartial(rows, i0, s);
    if constexpr (kScoreTiles && !kRereadsBias) Release(BackwardBarriers::kScoresFree);
    options.MarkDropped(s);
    ptx::WgmmaWait<0>();
    ComputeDs(options, rows, s, dp, p_pairs, ds_pairs);
    if constexpr (kRereadsBias) Release(BackwardBarriers::kScoresFree);
    if constexpr (kSumsDbias) AddDbias(head, i0, dp, ds_pairs);
    ptx::NamedBarrierArrive(RowsFree(stage), kRowsFreeThreads);
    StoreDs(stage, ds_pairs);
    Release(BackwardBarriers::kDsReady + stage);
    IssueKeyGradient(p_pairs, dout, dv);
    barriers.Wait(BackwardBarriers::kDsReady + stage, phase);
    IssueDq(stage, dq);
    ptx::WgmmaWait<1>();
    Release(BackwardBarriers::kDoutFree + stage);
    IssueKeyGradient(ds_pairs, q, dk);
    ptx::WgmmaWait<1>();
    StageDq(step, head, i0, dq);
    ptx::WgmmaWait<0>();
    Release(BackwardBarriers::kQFree + stage);
  }

  // One lane arrives for the warp, after the reads of all its lanes.
  __device__ __forceinline__ void Release(int barrier) const {
    __syncwarp();
    if (lane == 0) barriers.Arrive(barrier);
  }

  // Adds dS to the sums of dbias, and rounds it. Called after all of dS is computed: by then P is
  // rounded and takes half the registers, which leaves some for the addresses.
  __device__ __forceinline__ void AddDbias(int head, int i0, const Scores& ds,
                                           Fragments& ds_pairs) const {
    DbiasSum sum(p.common, keys.seq, head, i0, keys.j0 + WarpKey());
#pragma unroll
    for (int i = 0; i < kTileQ / 8; ++i) {
      sum.Add(p.common, i, ds + 4 * i);
      ds_pairs[2 * i] = ptx::Pack<kDtype>(ds[4 * i], ds[4 * i + 1]);
      ds_pairs[2 * i + 1] = ptx::Pack<kDtype>(ds[4 * i + 2], ds[4 * i + 3]);
    }
  }

  // dq = dS K, this warpgroup's part
  __device__ __forceinline__ void IssueDq(int stage, DqPart& dq) const {
    const ptx::MatrixDescriptor ds(
        base + kShared.ds + static_cast<unsigned>(stage * kDsBytes + warpgroup * kDqRows * 128),
        kTileQ * 128);
    const ptx::MatrixDescriptor k(
        base + kShared.k + static_cast<unsigned>(warpgroup * kDqColumns / 64 * kTileKv * 128),
        kTileQ * 128);
    ptx::WgmmaFence();
#pragma unroll
    for (int n = 0; n < kTileKv / 16; ++n) {
      ptx::WgmmaShared<kDtype, 64, 0, 1>(dq, ds.At(n / 4 * kTileQ * 128 + n % 4 * 32),
                                         k.At(n * 16 * 128), n > 0);
    }
    ptx::WgmmaCommit();
  }

  // Stages this warp's 16 x 64 of dQ for DqAdder, in the layout of dq_accum. If no other block
  // visits the tile, it is dq but for the scale, and DqAdder skips the step.
  __device__ __forceinline__ void StageDq(int step, int head, int i0, const DqPart& dq) const {
    barriers.Wait(BackwardBarriers::kDqFree + warpgroup, step + 1);
    if constexpr (kWritesSoleDq) {
      if (keys.list.IsSole(i0 / kTileQ)) {
        Release(BackwardBarriers::kDqReady + warpgroup);
        WriteDq(head, i0, dq);
        return;
      }
    }
    const unsigned to = base + kShared.dq +
                        static_cast<unsigned>((4 * warpgroup + warp) * kDqPieceBytes + 16 * lane);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      ptx::StoreShared128(to + i * 512, dq[4 * i], dq[4 * i + 1], dq[4 * i + 2], dq[4 * i + 3]);
    }
    ptx::FenceAsyncProxy();
    __syncwarp();
    Release(BackwardBarriers::kDqReady + warpgroup);
  }
  __device__ __forceinline__ void WriteDq(int head, int i0, const DqPart& dq) const {
    const Arguments& a = p.common;
    const Sequence& seq = keys.seq;
    const GradientRows rows{a, a.dq, seq.idx, head, seq.first_q, seq.len_q, a.scale, a.dim_qk};
    rows.Write(i0 + kDqRows * warpgroup + 16 * warp + lane / 4, dq, kDqColumns * warpgroup);
  }
};

}  // namespace sm90
