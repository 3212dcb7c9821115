// sm80/bias_gradient.cu: how a tile is shared among warps, and the tiles of scores that a block
// visits.
#pragma once
#include "config.cuh"
#include "ptx/memory.cuh"
#include "shared/dropout.cuh"
#include "shared/score.cuh"
#include "shared/sequence.cuh"
#include "sm80/bias_gradient_shared.cuh"
#include "sm80/bias_mask_tile.cuh"
#include "sm80/product.cuh"
#include "sm80/product_f32.cuh"
#include "sm80/sizes.cuh"
#include "sm80/tile.cuh"

namespace sm80::bias_gradient {

constexpr int kDimQk = config::dim_qk;
constexpr int kDimVo = config::dim_vo;
constexpr int kRows = kTileQ / kWarps;  // queries per warp
constexpr int kBlocksM = kRows / 16;
constexpr int kBlocksN = kTileKv / 8;
constexpr int kBiasBytes = ElementBytes(config::bias_type);
constexpr attn::device::BiasGradientShared kShared = attn::device::BiasGradientSharedOf(
    kTileQ, kTileKv, kStages, kDimQk, kDimVo, kBiasBytes, config::mask != 0, kElementBytes);
static_assert(kTileQ * kTileKv * 4 <= kShared.bias && kRows <= 32);

using BiasTile = BiasMaskTile<kRows, kTileKv, kBiasBytes>;
using MaskTile = BiasMaskTile<kRows, config::mask != 0 ? kTileKv : 64, 1>;
using Scores = float[kBlocksM][kBlocksN][4];

__device__ __forceinline__ int RowOf(int m, int r) {
  return 16 * m + static_cast<int>(threadIdx.x) % 32 / 4 + 8 * r;
}
__device__ __forceinline__ int ColumnOf(int n) {
  return 8 * n + static_cast<int>(threadIdx.x) % 4 * 2;
}

// c = X Y^T for the warp's rows of X.
template <int kDim>
__device__ __forceinline__ void MultiplyRows(unsigned x_tile, unsigned y_tile, Scores& c) {
  const auto x_lane = FragmentLane<kDim>::RowsFirst();
  const auto load = [&](int k, unsigned(&a)[kBlocksM][4]) {
#pragma unroll
    for (int m = 0; m < kBlocksM; ++m) ptx::LoadMatrix(a[m], x_lane.At(x_tile, 16 * m, 2 * k));
  };
  if constexpr (kF32) {
    MultiplyTransposedF32<kDim, false>(load, x_tile, y_tile, 0, c);
  } else {
    MultiplyTransposed<kDtype, kDim>(load, y_tile, 0, c);
  }
}

// One tile of scores that contributes to the block's tile of dbias. Each lane holds keys, lse and
// delta of one row only, i0 + OwnRow(); lanes read other rows by shuffles. If each lane held all of
// its rows, or the Sequence instead of its index, for this visit and the next, the kernel would
// spill (docs/kernels/sm80.md).
struct Visit {
  int seq_idx, head;
  int i0 = 0, j0 = 0;  // the warp's first query, the tile's first key
  KeyRange keys;
  float lse;  // in units of log2; inf if the row sees nothing
  float delta;
  bool partial;  // some row of the warp does not see every key
};

__device__ __forceinline__ int OwnRow() {
  return static_cast<int>(threadIdx.x) % kRows;
}
__device__ __forceinline__ float FromRow(float own_value, int row) {
  return __shfl_sync(~0u, own_value, row);
}
__device__ __forceinline__ KeyRange FromRow(const KeyRange& own_value, int row) {
  return {__shfl_sync(~0u, own_value.begin, row), __shfl_sync(~0u, own_value.end, row)};
}

// Loads keys, lse and delta of row i0 + OwnRow().
__device__ __forceinline__ void LoadRow(const Arguments& a, Visit& visit) {
  const Sequence seq = SequenceOf(a, visit.seq_idx);
  const long long first_row = a.packed_q != 0 ? seq.first_q : 1ll * seq.idx * a.max_len_q;
  const int i = visit.i0 + OwnRow();
  visit.keys = {0, 0};
  visit.lse = kInfinity;  // so that p = 0
  visit.delta = 0.0f;
  if (i < seq.len_q) {
    const int2 range = reinterpret_cast<const int2*>(a.row_ranges)[first_row + i];
    const float2 values = *reinterpret_cast<const float2*>(
        RowAddress(a.lse_delta, seq.idx, seq.first_q + i, visit.head));
    visit.keys = {range.x, range.y};
    visit.lse = values.x;
    visit.delta = values.y;
  }
}

// The tile of dbias that the block computes, and the block's split of the sum. Indices of
// dimensions that the bias broadcasts are 0.
struct BlockWork {
  int kv_tile, q_tile, head, entry;
  int split;
  int num_q_tiles, num_kv_tiles;                // of the problem
  bool full_batch, full_head, full_q, full_kv;  // not broadcast by the bias
};

__device__ __forceinline__ BlockWork BlockWorkOf(const Arguments& a) {
  BlockWork work;
  work.full_batch = (a.dbias_full & 8) != 0;
  work.full_head = (a.dbias_full & 4) != 0;
  work.full_q = (a.dbias_full & 2) != 0;
  work.full_kv = (a.dbias_full & 1) != 0;
  work.num_q_tiles = (a.max_len_q + kTileQ - 1) / kTileQ;
  work.num_kv_tiles = (a.max_len_kv + kTileKv - 1) / kTileKv;
  // The last dimension is fastest.
  unsigned rest = blockIdx.x;
  const auto next = [&](bool full, int count) {
    if (!full) return 0;
    const int index = static_cast<int>(rest % static_cast<unsigned>(count));
    rest /= static_cast<unsigned>(count);
    return index;
  };
  work.kv_tile = next(work.full_kv, work.num_kv_tiles);
  work.q_tile = next(work.full_q, work.num_q_tiles);
  work.head = next(work.full_head, a.heads_q);
  work.entry = next(work.full_batch, a.dbias_entries);
  work.split = static_cast<int>(rest);
  return work;
}

// Iterates over the tiles of scores (sequence, head, tile of queries, tile of keys) that contribute
// to the block's tile of dbias and belong to its split; tiles of keys vary fastest. Skips tiles in
// which no row sees a key.
class Visits {
 public:
  __device__ __forceinline__ Visits(const Arguments& a, const BlockWork& work)
      : kv_tile_(work.kv_tile),
        q_tile_(work.q_tile),
        head_(work.head),
        seq_idx_(work.entry * a.dbias_sharers) {
    num_kv_ = work.full_kv ? 1 : work.num_kv_tiles;
    num_q_ = work.full_q ? 1 : work.num_q_tiles;
    num_h_ = work.full_head ? 1 : a.heads_q;
    const long long visits = 1ll * num_kv_ * num_q_ * num_h_ * a.dbias_sharers;
    const long long begin = visits * work.split / a.splits;
    left_ = visits * (work.split + 1) / a.splits - begin;
    if (left_ <= 0) return;  // a call without keys has no visits, and its counts are 0
    at_kv_ = static_cast<int>(begin % num_kv_);
    at_q_ = static_cast<int>(begin / num_kv_ % num_q_);
    at_h_ = static_cast<int>(begin / num_kv_ / num_q_ % num_h_);
    at_b_ = static_cast<int>(begin / num_kv_ / num_q_ / num_h_);
  }

  // Begins to load the rows of the next visit, whether it is visible or not, and steps past it.
  // After the last visit it leaves an empty range of keys.
  __device__ __forceinline__ void BeginLoad(const Arguments& a, int warp, Visit& visit) {
    visit.keys = {0, 0};
    if (left_ <= 0) return;
    visit.seq_idx = seq_idx_ + at_b_;
    visit.head = head_ + at_h_;
    visit.i0 = (q_tile_ + at_q_) * kTileQ + warp * kRows;
    visit.j0 = (kv_tile_ + at_kv_) * kTileKv;
    LoadRow(a, visit);
    if (++at_kv_ == num_kv_) {
      at_kv_ = 0;
      if (++at_q_ == num_q_) {
        at_q_ = 0;
        if (++at_h_ == num_h_) {
          at_h_ = 0;
          ++at_b_;
        }
      }
    }
  }

  // Advances from the visit that BeginLoad() began to the first visible one; returns false if there
  // is none. Contains a barrier of the block, after which all threads have finished their earlier
  // reads of shared memory.
  __device__ __forceinline__ bool Find(const Arguments& a, int warp, Visit& visit) {
    const auto is_visible = [&] {
      return __syncthreads_or(visit.keys.begin < visit.j0 + kTileKv && visit.keys.end > visit.j0) !=
             0;
    };
    bool found = is_visible();
    while (!found && --left_ > 0) {
      BeginLoad(a, warp, visit);
      found = is_visible();
    }
    --left_;
    const bool partial = visit.keys.begin > visit.j0 || visit.keys.end < visit.j0 + kTileKv;
    visit.partial = __ballot_sync(~0u, partial) != 0;
    return found;
  }

 private:
  int kv_tile_, q_tile_, head_, seq_idx_;
  int num_kv_, num_q_, num_h_;                      // visits per dimension of the tile
  long long left_;                                  // visits that remain, from the next one on
  int at_kv_ = 0, at_q_ = 0, at_h_ = 0, at_b_ = 0;  // the next visit
};

}  // namespace sm80::bias_gradient
