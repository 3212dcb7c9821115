// A consumer warpgroup of sm90/forward.cu: 64 queries of each tile.
//
// With kOverlap a step issues S of tile i and then O += P V of tile i - 1, and computes P of tile i
// while O += P V runs. With kPingPong the warpgroups alternate in issuing products, so that the
// softmax of one overlaps with the products of the other.
#pragma once
#include "ptx/memory.cuh"
#include "ptx/mma.cuh"
#include "ptx/tma.cuh"
#include "ptx/warpgroup.cuh"
#include "ptx/wgmma_f8.cuh"
#include "sm90/score_modifiers.cuh"

namespace sm90 {

// Rows of V past the sequence's end may hold anything, and 0 * NaN is NaN. Every warpgroup writes
// the same zeros, so they need not wait for each other.
template <class BlockConsumer>
__device__ __forceinline__ void ZeroRowsPastEnd(const BlockConsumer& c, int i) {
  const int rows = c.len_kv - c.Key(i);
  if (rows >= kTileKv) return;
#pragma unroll 1
  for (int n = rows * 8 + 32 * c.warp + c.lane; n < kTileKv * 8; n += 128) {
#pragma unroll
    for (int chunk = 0; chunk < kDimVo / 64; ++chunk) {
      ptx::StoreShared128(c.VTile(i) + static_cast<unsigned>(chunk * kTileKv * 128 + n * 16), 0, 0,
                          0, 0);
    }
  }
  ptx::FenceAsyncProxy();
  ptx::NamedBarrierWait(1 + kMaxWarpgroups + c.warpgroup, 128);
}

// State that all consumers have: the block's progress over tiles of queries, and the current tile.
struct ConsumerState {
  const ForwardParams& p;
  unsigned base;  // shared memory
  ForwardBarriers barriers;
  int warpgroup;
  int warp;  // of the warpgroup
  int lane;
  int kv = 0;        // tiles of keys that the block visited for earlier tiles of queries
  int tile_idx = 0;  // tiles of queries computed before
  // Tiles of keys are counted over all tiles of queries of the block. The next ones belong to the
  // current tile of queries.
  int zero = 0;         // the tile that begins with key 0; the block need not visit it
  int first = 0;        // this warpgroup computes the tiles from `first`
  int last = -1;        // to `last`; none if last < first
  int partial_end = 0;  // tiles before `partial_end` hide keys from some rows,
  int full_end = 0;     // and so do tiles from `full_end` on
  int len_kv = 0;
  OnlineSoftmax softmax;
  ScoreModifiers modifiers;
  Scores s;
  Output o;
  PackedP packed;

  __device__ __forceinline__ ConsumerState(const ForwardParams& params, unsigned memory, int group)
      : p(params),
        base(memory),
        barriers(memory),
        warpgroup(group),
        warp(static_cast<int>(threadIdx.x) / 32 % 4),
        lane(static_cast<int>(threadIdx.x) % 32),
        modifiers(params) {}

  // One lane arrives for the warp, after the reads of all its lanes.
  __device__ __forceinline__ void Release(int barrier) const {
    __syncwarp();
    if (lane == 0) ptx::BarrierArrive(barriers.At(barrier));
  }

  // The first key of tile i.
  __device__ __forceinline__ int Key(int i) const { return (zero - i) * kTileKv; }
  __device__ __forceinline__ bool IsPartial(int i) const {
    return i < partial_end || (kLeftBound && i >= full_end);
  }

  // Begins a tile of queries.
  __device__ __forceinline__ void Begin(const QueryTile& tile) {
    modifiers.Start(tile, tile.row + 64 * warpgroup + 16 * warp + lane / 4);
    len_kv = tile.seq.len_kv;
    zero = kv + tile.kv_end - 1;
    first = kv + tile.own.skip_first;
    last = first + tile.own.count - 1;
    partial_end = first + tile.own.partial_first;
    full_end = last + 1 - tile.own.partial_last;
  }
};

struct Consumer : ConsumerState {
  int q_stage = 0;  // of the current tile of queries
  Sums sums;

  using ConsumerState::ConsumerState;

  // Computes `softmax` and `o` of the tile of queries; o is not written if no key is visible.
  __device__ __forceinline__ void Compute(const QueryTile& tile) {
    Begin(tile);
    const bool any = first <= last;
    q_stage = tile_idx % kQStages;
    barriers.Wait(ForwardBarriers::QReady(warpgroup, q_stage), tile_idx / kQStages);
    // All warpgroups must take the same number of turns, whichever tiles they skip. With kOverlap
    // it is one less than the number of tiles of keys that the block visits, otherwise one more.
#pragma unroll 1
    for (int i = kv; i < first; ++i) Skip(i, !kOverlap || i > kv || any);
    if constexpr (kAccumulateTiles > 0) {
#pragma unroll
      for (int n = 0; n < kDimVo / 2; ++n) sums[n] = 0.0f;
    }
    if (any) {
      if constexpr (kOverlap) {
        ComputeOverlapped();
      } else {
        ComputeInOrder();
      }
    } else {
      if constexpr (!kOverlap) {
        BeginTurn();
        EndTurn();
      }
      Release(ForwardBarriers::QFree(warpgroup, q_stage));
      softmax.Clear();
    }
    if constexpr (kLeftBound) {
#pragma unroll 1
      for (int i = last + 1; i < kv + tile.kv_count; ++i) Skip(i, true);
    }
    ++tile_idx;
  }

  // Address of V of the i-th tile of keys.
  __device__ __forceinline__ unsigned VTile(int i) const {
    return base + kShared.v + static_cast<unsigned>(Stage(i) * kVBytes);
  }

 private:
  __device__ __forceinline__ static int Stage(int i) { return i % kStages; }
  __device__ __forceinline__ static int Phase(int i) { return i / kStages; }

  // Releases the keys of tile i, and its part of bias or mask, once its scores are complete.
  __device__ __forceinline__ void ReleaseKeys(int i) const {
    Release(ForwardBarriers::kKFree + Stage(i));
  }

  // The mask's bits have a ring of their own, so that packers run ahead of K.
  __device__ __forceinline__ static int BitsStage(int i) { return i % kBitsStages; }
  __device__ __forceinline__ void WaitForBits(int i) const {
    barriers.Wait(ForwardBarriers::kBitsReady + BitsStage(i), i / kBitsStages);
  }
  __device__ __forceinline__ void ReleaseBits(int i) const {
    ptx::BarrierArrive(barriers.At(ForwardBarriers::kBitsFree + BitsStage(i)));
  }

  // kPingPong: waits for this warpgroup's turn, or passes the turn on. Named barriers 1 to
  // kWarpgroups.
  __device__ __forceinline__ void BeginTurn() const {
    if constexpr (kPingPong) ptx::NamedBarrierWait(1 + warpgroup, 256);
  }
  __device__ __forceinline__ void EndTurn() const {
    if constexpr (kPingPong) ptx::NamedBarrierArrive(1 + (warpgroup + 1) % kWarpgroups, 256);
  }

  // Skips a tile that only other warpgroups see.
  __device__ __forceinline__ void Skip(int i, bool turn) const {
    if (turn) {
      BeginTurn();
      EndTurn();
    }
    barriers.Wait(ForwardBarriers::kKReady + Stage(i), Phase(i));
    // Releases the bits too: no phase of kBitsFree may end before the mask packers have seen it.
    if constexpr (kMaskBits) {
      WaitForBits(i);
      ReleaseBits(i);
    }
    ReleaseKeys(i);
    barriers.Wait(ForwardBarriers::kVReady + Stage(i), Phase(i));
    Release(ForwardBarriers::kVFree + Stage(i));
  }

  __device__ __forceinline__ unsigned KTile(int i) const {
    return base + kShared.k + static_cast<unsigned>(Stage(i) * kKBytes);
  }
  __device__ __forceinline__ unsigned QTile() const {
    return base + kShared.q +
           static_cast<unsigned>(q_stage * kQBytes + warpgroup * 64 * kQkRowBytes);
  }

  // s = Q K^T
  __device__ __forceinline__ void IssueScores(int i) {
    barriers.Wait(ForwardBarriers::kKReady + Stage(i), Phase(i));
    const ptx::SwizzledDescriptor<kQkRowBytes> q(QTile(), 16);
    const ptx::SwizzledDescriptor<kQkRowBytes> k(KTile(i), 16);
    ptx::WgmmaFence();
    // A product takes 32 bytes of each row.
    constexpr int kPerChunk = kQkRowBytes / 32;
#pragma unroll
    for (int n = 0; n < kDimQk * kElementBytes / 32; ++n) {
      const unsigned q_at = n / kPerChunk * kTileQ * kQkRowBytes + n % kPerChunk * 32;
      const unsigned k_at = n / kPerChunk * kTileKv * kQkRowBytes + n % kPerChunk * 32;
      if constexpr (kF8) {
        ptx::WgmmaSharedF8<kDtype, kDtypeKv, kTileKv>(s, q.At(q_at), k.At(k_at), n > 0);
      } else {
        ptx::WgmmaShared<kDtype, kTileKv>(s, q.At(q_at), k.At(k_at), n > 0);
      }
    }
    ptx::WgmmaCommit();
  }

  // o += P V, or o = P V
  __device__ __forceinline__ void IssueOutput(int i) {
    barriers.Wait(ForwardBarriers::kVReady + Stage(i), Phase(i));
    if constexpr (kF8) {
      IssueOutputF8(i);
    } else {
      IssueOutput16(i);
    }
  }
  __device__ __forceinline__ void IssueOutput16(int i) {
    if constexpr (config::lengths != kNoLengths) ZeroRowsPastEnd(*this, i);
    const ptx::MatrixDescriptor v(VTile(i), kTileKv * 128);
    ptx::WgmmaFence();
#pragma unroll
    for (int n = 0; n < kTileKv / 16; ++n) {
      ptx::WgmmaRegisters<kDtype, kDimVo>(o, packed + 4 * n, v.At(n * 2048), n > 0 || i > first);
    }
    ptx::WgmmaCommit();
  }
  // f8: V is transposed, so its rows have keys.
  __device__ __forceinline__ void IssueOutputF8(int i) {
    const ptx::SwizzledDescriptor<kKeyRowBytes> v(VTile(i), 16);
    const bool accumulate = TilesInOutput(i) > 0;
    ptx::WgmmaFence();
    constexpr int kPerChunk = kKeyRowBytes / 32;
    constexpr int kColumns = kF8 ? kDimVo : 64;  // f8 has no tile of 192 columns (dims above 256)
#pragma unroll
    for (int n = 0; n < kTileKv / 32; ++n) {
      const unsigned v_at = n / kPerChunk * kDimVo * kKeyRowBytes + n % kPerChunk * 32;
      ptx::WgmmaRegistersF8<config::f8e4m3, kDtypeKv, kColumns>(o, packed + 4 * n, v.At(v_at),
                                                                n > 0 || accumulate);
    }
    ptx::WgmmaCommit();
  }
  // The number of tiles whose P V is in O when that of tile i is issued.
  __device__ __forceinline__ int TilesInOutput(int i) const {
    return kAccumulateTiles > 0 ? (i - first) % max(kAccumulateTiles, 1) : i - first;
  }
  // Called when P V of tile i is complete: adds O to the sums if the next product starts from 0.
  __device__ __forceinline__ void AddToSums(int i) {
    if constexpr (kAccumulateTiles > 0) {
      if (TilesInOutput(i + 1) != 0) return;
#pragma unroll
      for (int n = 0; n < kDimVo / 2; ++n) sums[n] += o[n];
    }
  }
  // Adds the sums to O.
  __device__ __forceinline__ void FinishSums() {
    if constexpr (kAccumulateTiles > 0) {
#pragma unroll
      for (int n = 0; n < kDimVo / 2; ++n) o[n] += sums[n];
    }
  }

  __device__ __forceinline__ void FinishOutput(int i) {
    IssueOutput(i);
    ptx::WgmmaWait<0>();
    Release(ForwardBarriers::kVFree + Stage(i));
  }

  // Recomputes the scores of a warp's 16 rows by mma.sync, for the rare tile where P has
  // overflowed. K and Q are still in shared memory, and accumulators of both instructions have the
  // same layout.
  __device__ __forceinline__ void Redo(int i) {
    constexpr unsigned kPerChunk = kQkRowBytes / 32;
    const unsigned q_row = static_cast<unsigned>(16 * warp + lane % 16);
    const unsigned q_lane = QTile() + q_row * kQkRowBytes;
#pragma unroll
    for (int n = 0; n < kTileKv / 16; ++n) {
      const unsigned k_row = static_cast<unsigned>(16 * n + lane % 8 + lane / 16 * 8);
      const unsigned k_lane = KTile(i) + k_row * kQkRowBytes;
      float product[2][4]{};
#pragma unroll 1
      for (unsigned k = 0; k < kDimQk * kElementBytes / 32; ++k) {
        const unsigned q_chunk = k % kPerChunk * 2 + static_cast<unsigned>(lane / 16);
        const unsigned k_chunk = k % kPerChunk * 2 + static_cast<unsigned>(lane / 8 % 2);
        unsigned a[4];
        unsigned b[4];
        ptx::LoadMatrix(a, q_lane + k / kPerChunk * kTileQ * kQkRowBytes +
                               (Swizzled<kQkRowBytes>(q_chunk, q_row) << 4));
        ptx::LoadMatrix(b, k_lane + k / kPerChunk * kTileKv * kQkRowBytes +
                               (Swizzled<kQkRowBytes>(k_chunk, k_row) << 4));
        if constexpr (kF8) {
          ptx::MmaF8<kDtype, kDtypeKv>(product[0], a, b[0], b[1]);
          ptx::MmaF8<kDtype, kDtypeKv>(product[1], a, b[2], b[3]);
        } else {
          ptx::Mma<kDtype>(product[0], a, b[0], b[1]);
          ptx::Mma<kDtype>(product[1], a, b[2], b[3]);
        }
      }
#pragma unroll
      for (int e = 0; e < 8; ++e) s[8 * n + e] = product[e / 4][e % 4];
    }
    if constexpr (kBiasBytes == 2) modifiers.LoadBias(BiasTile(i));
    ModifyScores<false>(i, true);
    softmax.UpdateWithMax(modifiers.unit, s, o, sums);
  }

  // Address of a stage of score tiles: tiles of bias of all warpgroups, then those of the mask.
  __device__ __forceinline__ unsigned ScoreTiles(int i) const {
    return base + kShared.score +
           static_cast<unsigned>(Stage(i) * kTileQ * kTileKv * (kBiasBytes + kMaskBytes));
  }
  __device__ __forceinline__ unsigned BiasTile(int i) const {
    return ScoreTiles(i) + static_cast<unsigned>(64 * warpgroup * kTileKv * kBiasBytes);
  }

  // Loads the inputs of score modifiers for tile i while its scores are being computed.
  __device__ __forceinline__ void Prepare(int i) {
    if constexpr (kBiasBytes == 2) modifiers.LoadBias(BiasTile(i));
    if constexpr (kMaskBits) {
      WaitForBits(i);
      modifiers.LoadBits(
          base + kShared.bits +
          static_cast<unsigned>(BitsStage(i) * kBitsBytes + 64 * warpgroup * kBitsRow));
      ReleaseBits(i);
    }
  }

  // Applies options to the scores of tile i, and hides keys of a partial tile. `relative`: also
  // subtracts the row's max.
  template <bool relative>
  __device__ __forceinline__ void ModifyScores(int i, bool partial) {
    modifiers.Modify<relative>(Key(i), BiasTile(i), softmax.max, s);
    modifiers.HideByMask(
        ScoreTiles(i) + static_cast<unsigned>(kTileQ * kTileKv * kBiasBytes +
                                              64 * warpgroup * kTileKv * kMaskBytes),
        s);
    if constexpr (kMaskBits) modifiers.HideByBits(s);
    if (partial) modifiers.Hide(Key(i), s);
  }

  // Turns the complete S of the first tile i into P.
  __device__ __forceinline__ void StartSoftmax(int i, bool partial) {
    ModifyScores<false>(i, partial);
    ReleaseKeys(i);
    softmax.Start(modifiers.unit, s);
    modifiers.Pack(Key(i), s, packed);
  }

  // The same for later tiles. With kOverlap it waits for the previous product, because its O is
  // rescaled with the max.
  __device__ __forceinline__ void UpdateSoftmax(int i, bool partial) {
    ModifyScores<kRelativeScores>(i, partial);
    softmax.Update<kRelativeScores>(modifiers.unit, s);
    const bool within = softmax.WithinThreshold();
    if (within) ReleaseKeys(i);
    if constexpr (kOverlap) {
      ptx::WgmmaWait<0>();
      Release(ForwardBarriers::kVFree + Stage(i - 1));
    }
    AddToSums(i - 1);
    if (!within) {
      if (!softmax.Renew(s, o, sums)) Redo(i);
      ReleaseKeys(i);
    }
    softmax.AddTile();
    modifiers.Pack(Key(i), s, packed);
  }

  __device__ __forceinline__ void ComputeOverlapped() {
    IssueScores(first);
    Prepare(first);
    ptx::WgmmaWait<0>();
    StartSoftmax(first, IsPartial(first));
    for (int i = first + 1; i <= last; ++i) {
      BeginTurn();
      IssueScores(i);
      IssueOutput(i - 1);
      EndTurn();
      Prepare(i);
      ptx::WgmmaWait<1>();
      UpdateSoftmax(i, IsPartial(i));
    }
    Release(ForwardBarriers::QFree(warpgroup, q_stage));
    FinishOutput(last);
    FinishSums();
  }

  // For few registers: P is gone before S is written again. A turn lasts until the products are
  // complete.
  __device__ __forceinline__ void ComputeInOrder() {
    BeginTurn();
    for (int i = first; i <= last; ++i) {
      IssueScores(i);
      Prepare(i);
      ptx::WgmmaWait<0>();
      EndTurn();
      if (i == first) {
        StartSoftmax(i, IsPartial(i));
      } else {
        UpdateSoftmax(i, IsPartial(i));
      }
      BeginTurn();
      FinishOutput(i);
    }
    EndTurn();
    Release(ForwardBarriers::QFree(warpgroup, q_stage));
    FinishSums();
  }
};

}  // namespace sm90
