// A consumer warpgroup of sm90/forward.cu for head dims above 256: 64 queries of each tile, and one
// part of O's columns (kDimVo).
//
// K has stages of 64 columns, which are released while S is still being computed, so the scores
// cannot be recomputed later. Every tile therefore computes its own max, and O is rescaled when a P
// would exceed its threshold. A step issues S of tile i, then O += P V of tile i - 1, and computes
// P of tile i while O += P V runs.
#pragma once
#include "sm90/forward_consumer.cuh"

namespace sm90 {

struct WideConsumer : ConsumerState {
  using ConsumerState::ConsumerState;

  // Computes `softmax` and `o` of the tile of queries; o is not written if no key is visible.
  __device__ __forceinline__ void Compute(const QueryTile& tile) {
    Begin(tile);
    barriers.Wait(ForwardBarriers::QReady(warpgroup, 0), tile_idx);
#pragma unroll 1
    for (int i = kv; i < first; ++i) Skip(i);
    if (first <= last) {
      ComputeTiles();
    } else {
      softmax.Clear();
    }
    if constexpr (kLeftBound) {
#pragma unroll 1
      for (int i = last + 1; i < kv + tile.kv_count; ++i) Skip(i);
    }
    ++tile_idx;
  }

  // O is staged in the memory of Q, so all warps of the warpgroup must have read Q.
  __device__ __forceinline__ void BeginEpilogue() const {
    if constexpr (config::store_elements == 0) {
      ptx::NamedBarrierWait(1 + kMaxWarpgroups + warpgroup, 128);
    }
  }
  __device__ __forceinline__ void EndEpilogue() const {
    if (lane == 0) ptx::TmaStoreWaitRead();
    ptx::FenceAsyncProxy();  // threads, not TMA, read the last rows of packed sequences
    Release(ForwardBarriers::QFree(warpgroup, 0));
  }

  // V has one stage.
  __device__ __forceinline__ unsigned VTile(int /*i*/) const { return base + kShared.v; }

 private:
  static constexpr int kChunks = kDimQk / 64;  // of K, a stage each

  // Number of a chunk of K in the ring.
  __device__ __forceinline__ static int Chunk(int i, int c) { return i * kChunks + c; }

  __device__ __forceinline__ void WaitK(int n) const {
    barriers.Wait(ForwardBarriers::kKReady + n % kStages, n / kStages);
  }
  __device__ __forceinline__ void ReleaseK(int n) const {
    Release(ForwardBarriers::kKFree + n % kStages);
  }

  // Skips a tile that only the other warpgroup sees.
  __device__ __forceinline__ void Skip(int i) const {
#pragma unroll 1
    for (int c = 0; c < kChunks; ++c) {
      WaitK(Chunk(i, c));
      ReleaseK(Chunk(i, c));
    }
    barriers.Wait(ForwardBarriers::kVReady, i);
    Release(ForwardBarriers::kVFree);
  }

  // s = Q K^T. Releases all chunks but the last.
  __device__ __forceinline__ void IssueScores(int i) {
    const ptx::SwizzledDescriptor<128> q(
        base + kShared.q + static_cast<unsigned>(warpgroup * 64 * 128), 16);
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const int n = Chunk(i, c);
      WaitK(n);
      const ptx::SwizzledDescriptor<128> k(
          base + kShared.k + static_cast<unsigned>(n % kStages * kKBytes), 16);
      ptx::WgmmaFence();
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        ptx::WgmmaShared<kDtype, kTileKv>(s, q.At(c * kTileQ * 128 + j * 32), k.At(j * 32),
                                          c > 0 || j > 0);
      }
      ptx::WgmmaCommit();
      if (c > 0) {
        ptx::WgmmaWait<1>();
        ReleaseK(n - 1);
      }
    }
  }

  // o += P V, or o = P V
  __device__ __forceinline__ void IssueOutput(int i) {
    barriers.Wait(ForwardBarriers::kVReady, i);
    if constexpr (config::lengths != kNoLengths) ZeroRowsPastEnd(*this, i);
    const ptx::MatrixDescriptor v(VTile(i), kTileKv * 128);
    ptx::WgmmaFence();
#pragma unroll
    for (int n = 0; n < kTileKv / 16; ++n) {
      ptx::WgmmaRegisters<kDtype, kDimVo>(o, packed + 4 * n, v.At(n * 2048), n > 0 || i > first);
    }
    ptx::WgmmaCommit();
  }

  // Turns the complete S of the first tile i into P.
  __device__ __forceinline__ void StartSoftmax(int i, bool partial) {
    ReleaseK(Chunk(i, kChunks - 1));
    ModifyScores(i, partial);
    softmax.Start(modifiers.unit, s);
    modifiers.Pack(Key(i), s, packed);
  }
  // The same for later tiles, while P V of the previous tile runs.
  __device__ __forceinline__ void UpdateSoftmax(int i, bool partial) {
    ReleaseK(Chunk(i, kChunks - 1));
    ModifyScores(i, partial);
    float alpha[2];
    const bool rescale = softmax.Raise(modifiers.unit, s, alpha);
    softmax.Update(modifiers.unit, s);
    softmax.AddTile();
    ptx::WgmmaWait<0>();
    Release(ForwardBarriers::kVFree);
    if (rescale) {
#pragma unroll
      for (int n = 0; n < kDimVo / 2; ++n) o[n] *= alpha[n / 2 % 2];
    }
    modifiers.Pack(Key(i), s, packed);
  }
  __device__ __forceinline__ void ModifyScores(int i, bool partial) {
    modifiers.Modify<false>(Key(i), 0, softmax.max, s);
    if (partial) modifiers.Hide(Key(i), s);
  }

  __device__ __forceinline__ void ComputeTiles() {
    IssueScores(first);
    ptx::WgmmaWait<0>();
    StartSoftmax(first, IsPartial(first));
#pragma unroll 1
    for (int i = first + 1; i <= last; ++i) {
      IssueScores(i);
      IssueOutput(i - 1);
      ptx::WgmmaWait<1>();
      UpdateSoftmax(i, IsPartial(i));
    }
    IssueOutput(last);
    ptx::WgmmaWait<0>();
    Release(ForwardBarriers::kVFree);
  }
};

}  // namespace sm90
