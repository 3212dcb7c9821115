// sm80/backward.cu: which tiles of queries a block visits, and their loads.
#pragma once
#include "sm80/backward_scores.cuh"

namespace sm80::backward {

// What the block computes: dK and dV of a tile of keys of one key head.
struct Block {
  Sequence seq;
  int tile_idx;
  int j0;
  int head_kv;
};

__device__ __forceinline__ Block BlockOf(const Arguments& a) {
  const unsigned tiles = static_cast<unsigned>((a.max_len_kv + kTileKv - 1) / kTileKv);
  // Sequences that share a slice of dbias_accum are scheduled consecutively, so that their sums
  // stay in L2. Tiles of keys come next.
  const unsigned sharing = config::bias_gradient != 0 ? static_cast<unsigned>(a.dbias_sharers) : 1;
  const unsigned tile = blockIdx.x / sharing % tiles;
  const unsigned heads = blockIdx.x / sharing / tiles;
  const int tile_idx = static_cast<int>(a.dq_semaphore != nullptr ? tiles - 1 - tile : tile);
  const int j0 = tile_idx * kTileKv;
  const int head_kv = static_cast<int>(heads % static_cast<unsigned>(a.heads_kv));
  const int seq_idx =
      static_cast<int>(heads / static_cast<unsigned>(a.heads_kv) * sharing + blockIdx.x % sharing);
  return {SequenceOf(a, seq_idx), tile_idx, j0, head_kv};
}

// The tiles of queries in a window that see keys of the block, as two bit sets in shared memory.
// Computed from q_ranges (passes/backward_preprocess.cu).
class TilesToVisit {
 public:
  __device__ __forceinline__ TilesToVisit(const Arguments& a, const Block& block,
                                          unsigned char* memory)
      : bits_(reinterpret_cast<unsigned*>(memory + kShared.tiles_to_visit)),
        partial_(reinterpret_cast<unsigned*>(memory + kShared.partial)),
        j0_(block.j0) {
    num_tiles_ = (a.max_len_q + kTileQ - 1) / kTileQ;
    ranges_ = reinterpret_cast<const int4*>(a.q_ranges) + 1ll * block.seq.idx * num_tiles_;
    // Reads the ranges of the first window before the loads of K and V are issued, so that they do
    // not wait for those.
    first_ = static_cast<int>(threadIdx.x) < num_tiles_ ? ranges_[threadIdx.x] : int4{};
  }

  // Lists the `count` tiles of the window. All threads call it; it contains barriers of the block.
  __device__ __forceinline__ void List(int window, int count) const {
    // After the barrier the bits of the previous window have been read. The loop stays rolled where
    // unrolling spills more.
    __syncthreads();
#pragma unroll(kPDsInSmem || kWarps == 2 ? 1 : attn::device::kBackwardWindow / kThreads)
    for (int n = static_cast<int>(threadIdx.x); n < (count + 31) / 32 * 32; n += kThreads) {
      bool sees = false;
      bool sees_all = true;
      if (n < count) {
        const int4 range = window + n < kThreads ? first_ : ranges_[window + n];
        sees = range.x < j0_ + kTileKv && range.y > j0_;
        sees_all = range.z <= j0_ && range.w >= j0_ + kTileKv;
      }
      const unsigned sees_bits = __ballot_sync(~0u, sees);
      const unsigned partial_bits = __ballot_sync(~0u, !sees_all);
      if (Lane() == 0) {
        bits_[n / 32] = sees_bits;
        partial_[n / 32] = partial_bits;
      }
    }
    __syncthreads();
  }

  // Returns the first tile to visit at or after `from`, or `count` if there is none.
  __device__ __forceinline__ int Next(int from, int count) const {
    while (from < count) {
      const unsigned rest = bits_[from / 32] >> (from % 32);
      if (rest != 0) return from + __ffs(static_cast<int>(rest)) - 1;
      from = (from | 31) + 1;
    }
    return count;
  }
  __device__ __forceinline__ bool IsPartial(int tile) const {
    return (partial_[tile / 32] >> (tile % 32) & 1) != 0;
  }
  // The number of key tiles from the first one to the last one that some query of the tile sees.
  __device__ __forceinline__ int NumKeyTiles(int tile) const {
    return (ranges_[tile].y + kTileKv - 1) / kTileKv;
  }
  __device__ __forceinline__ int num_tiles() const { return num_tiles_; }

 private:
  unsigned* bits_;
  unsigned* partial_;
  int j0_;
  int num_tiles_;
  const int4* ranges_;
  int4 first_;
};

// Loads Q and dO of a tile through a ring of kStages stages. lse_delta, bias and mask, which only
// the scores need, have one buffer each; it is free once all warps have computed their scores.
// Wait() at the start of each step waits for all of these loads.
class QueryPipeline {
 public:
  __device__ __forceinline__ QueryPipeline(const Arguments& a, const Block& block, unsigned base)
      : q_(a.q, a.dim_qk, RowAddress(a.q, block.seq.idx, block.seq.first_q, 0)),
        dout_(a.dout, a.dim_vo, RowAddress(a.dout, block.seq.idx, block.seq.first_q, 0)),
        lse_delta_(RowAddress(a.lse_delta, block.seq.idx, block.seq.first_q, 0)),
        base_(base),
        seq_(block.seq) {}

  __device__ __forceinline__ unsigned QTile(int stage) const {
    return base_ + kShared.q + static_cast<unsigned>(stage * kTileQ * kDimQk * kElementBytes);
  }
  __device__ __forceinline__ unsigned DoutTile(int stage) const {
    return base_ + kShared.dout + static_cast<unsigned>(stage * kTileQ * kDimVo * kElementBytes);
  }

  // Loads Q and dO of a tile of queries of one head, if `enabled`. Always commits a group.
  __device__ __forceinline__ void Load(const Arguments& a, int head, int tile, int stage,
                                       bool enabled) const {
    if (enabled) {
      const int i = tile * kTileQ;
      const int num_queries = seq_.len_q - i;
      q_.Load(QTile(stage), i * a.q.stride_row + head * a.q.stride_head, num_queries);
      dout_.Load(DoutTile(stage), i * a.dout.stride_row + head * a.dout.stride_head, num_queries);
    }
    ptx::CopyCommit();
  }
  // Calls Load() if the ring has kNumStages stages. With two stages the next tile is loaded while
  // the current one is used; with one stage, as soon as the current one has been read.
  template <int kNumStages>
  __device__ __forceinline__ void LoadIfStages(const Arguments& a, int head, int tile, int stage,
                                               bool enabled) const {
    if constexpr (kStages == kNumStages) Load(a, head, tile, stage, enabled);
  }
  // Waits for all loads of this thread. If kRoundsTiles, then rounds what it loaded: Q and dO, and
  // at the first call K and V.
  __device__ __forceinline__ void Wait(int stage) {
    ptx::CopyWait<0>();
    if constexpr (kRoundsTiles) {
      q_.ChangeOwn(QTile(stage), RoundToTf32);
      dout_.ChangeOwn(DoutTile(stage), RoundToTf32);
      if (keys_rounded_) return;
      TileLoader<kDimQk, kTileKv, kThreads, kDtype>::ChangeOwn(base_ + kShared.k, RoundToTf32);
      TileLoader<kDimVo, kTileKv, kThreads, kDtype>::ChangeOwn(base_ + kShared.v, RoundToTf32);
      keys_rounded_ = true;
    }
  }
  // Loads lse_delta, and the warp's part of bias and mask, if `enabled`.
  __device__ __forceinline__ void LoadScoreInputs(const Arguments& a, const ScoreContext& context,
                                                  int head, int tile, bool enabled) const {
    const int row = static_cast<int>(threadIdx.x);
    if (enabled && row < kTileQ) {
      const int i = tile * kTileQ;
      const bool exists = i + row < seq_.len_q;
      ptx::CopyAsyncSmall<8>(
          base_ + kShared.lse_delta + static_cast<unsigned>(8 * row),
          exists ? lse_delta_ + (i + row) * 8ll + head * a.lse_delta.stride_head : a.lse_delta.base,
          exists);
    }
    if constexpr (kHasBias || kHasMask) {
      if (enabled && (kScoringWarps == kWarps || Warp() < kScoringWarps)) {
        const int i = tile * kTileQ + context.query;
        if constexpr (kHasBias) {
          BiasTile::Load(context.bias, a.bias,
                         ScoreAddress(a.bias, BiasEntry(a, seq_.idx), head, i, context.j0),
                         seq_.len_q - i, seq_.len_kv - context.j0);
        }
        if constexpr (kHasMask) {
          MaskTile::Load(context.mask, a.mask,
                         ScoreAddress(a.mask, MaskEntry(a, seq_.idx), head, i, context.j0),
                         seq_.len_q - i, seq_.len_kv - context.j0);
        }
      }
    }
  }

 private:
  TileLoader<kDimQk, kTileQ, kThreads, kDtype> q_;
  TileLoader<kDimVo, kTileQ, kThreads, kDtype> dout_;
  const char* lse_delta_;
  unsigned base_;
  Sequence seq_;
  bool keys_rounded_ = false;
};

}  // namespace sm80::backward
