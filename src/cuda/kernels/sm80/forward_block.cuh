// sm80/forward.cu and sm80/forward_cache.cu: everything around the loop over tiles of keys: the
// block's rows and the keys that they see, the ring of K and V, and the output.
#pragma once
#include "sm80/forward_softmax.cuh"
#include "sm80/output_f32.cuh"
#include "sm80/tile_output.cuh"

namespace sm80::forward {

static_assert(kTileQ * StagedRows<config::dim_vo, kDtype>::kRowBytes <= kShared.bytes);

// The block's work: one tile of queries of one head.
struct Block {
  Sequence seq;
  int head;
  int q0;  // first query of the tile
};

__device__ __forceinline__ Block BlockOf(const Arguments& a) {
  const unsigned tiles = static_cast<unsigned>((a.max_len_q + kTileQ - 1) / kTileQ);
  const unsigned heads = blockIdx.x / tiles;
  const int q0 = static_cast<int>(tiles - 1 - blockIdx.x % tiles) * kTileQ;
  const bool sequences_first =
      kHasBias && (a.bias.stride_batch == 0 || config::shared_entries != 0);
  const unsigned count = static_cast<unsigned>(sequences_first ? a.batch : a.heads_q);
  const int inner = static_cast<int>(heads % count);
  const int outer = static_cast<int>(heads / count);
  const int head = sequences_first ? outer : inner;
  return {SequenceOf(a, sequences_first ? inner : outer), head, q0};
}

// Prologue: computes the key ranges of the block's rows, in shared memory, and from them the tiles
// to visit. Contains barriers of the block.
struct Visibility {
  TileRange warp;            // of the warp's rows
  TileRange block;           // of the block's rows
  const KeyRange* ranges;    // of the block's rows
  int tile_begin, tile_end;  // tiles of keys to visit

  __device__ __forceinline__ Visibility(const Arguments& a, const Block& block_of, int warp_idx,
                                        KeyRange* shared_ranges) {
    TileRange of_thread;
    KeyRange keys;  // of the thread's row; stays empty past the length
    const int thread = static_cast<int>(threadIdx.x);
    // Both forms give the same row for 32 rows per warp. With dropout each form spills in the
    // Configs where the other does not.
    const int own_row = kRows == 32 && !kOneStage ? thread : warp_idx * kRows + thread % 32;
    const bool owns = kRows == 32 || thread % 32 < kRows;
    if (owns && block_of.q0 + own_row < block_of.seq.len_q) {
      keys = VisibleKeys(a, block_of.seq, block_of.q0 + own_row);
      Include(of_thread, keys);
    }
    warp = ReduceWarp(of_thread);
    block = ReduceBlock<kWarps>(warp, reinterpret_cast<int*>(shared_ranges));
    __syncthreads();  // all threads have read the scratch, which the ranges overwrite
    if (owns) shared_ranges[own_row] = keys;
    ranges = shared_ranges;
    tile_begin = block.any_begin / kTileKv;
    tile_end = (block.any_end + kTileKv - 1) / kTileKv;
  }

  // Whether some row of the warp sees a key of the tile. Always true if hidden tiles are not
  // skipped.
  __device__ __forceinline__ bool IsVisible(int j0) const {
    return !kSkipsHiddenTiles || (j0 < warp.any_end && j0 + kTileKv > warp.any_begin);
  }
  __device__ __forceinline__ bool IsPartial(int j0) const {
    const TileRange& rows = kPartialByWarp ? warp : block;
    return j0 < rows.all_begin || j0 + kTileKv > rows.all_end;
  }
};

// Unroll factors of the passes of a load. In the loop loads are unrolled completely. Before the
// loop they run once, and fetching unrolled code would cost more than it saves.
constexpr int kRolled = 1;
constexpr int kUnrolled = 64;

// Address of a tile of K or V in shared memory.
__device__ __forceinline__ unsigned KTile(unsigned base, int tile) {
  return base + kShared.k + static_cast<unsigned>(tile % kStages * kTileKv * QLayout::kRowBytes);
}
__device__ __forceinline__ unsigned VTile(unsigned base, int tile) {
  return base + kShared.v + static_cast<unsigned>(tile % kStages * kTileKv * VLayout::kRowBytes);
}

// The ring of tiles of K and V. All threads of the block load them from two streams, where
// Load<unroll>(to, left) loads the next tile and `left` of its rows exist. One group is committed
// per tile, empty past the last tile, so that the number of pending groups tells which tiles have
// arrived. With one stage, K and V are separate groups: K's load overlaps PV and V's load overlaps
// QK^T.
template <class KStream, class VStream>
class KvPipeline {
 public:
  __device__ __forceinline__ KvPipeline(const Block& block, const Visibility& visibility,
                                        unsigned base, const KStream& k, const VStream& v)
      : len_kv_(block.seq.len_kv),
        tile_end_(visibility.tile_end),
        base_(base),
        k_stream_(k),
        v_stream_(v) {}

  // Starts the loads of the first kStages - 1 tiles; with one stage, of K of the first tile.
  __device__ __forceinline__ void Start(int tile) {
#pragma unroll 1
    for (int ahead = 0; ahead < kStages - 1; ++ahead) Load<kRolled>(tile + ahead);
    if constexpr (kOneStage) Load<kRolled>(tile, true, false);
  }
  // Waits for Q, which is the first group.
  __device__ __forceinline__ static void WaitForQ() {
    ptx::CopyWait<kOneStage ? 1 : kStages - 1>();
    __syncthreads();
  }
  // Waits for the tile (with one stage, for its K) and for its bias and mask. Bias and mask are
  // loaded one tile ahead and committed last, so with them no group may stay in flight. After the
  // barrier all warps have read the stage that is loaded next; then starts its load.
  __device__ __forceinline__ void Advance(int tile) {
    ptx::CopyWait<kHasBias || kHasMask || kOneStage ? 0 : kStages - 2>();
    __syncthreads();
    if constexpr (kOneStage) {
      Load<kUnrolled>(tile, false, true);
    } else {
      Load<kUnrolled>(tile + kStages - 1);
    }
  }
  // Called between QK^T and PV. With one stage it waits for V and, after a barrier (all warps have
  // read K), starts the load of the next K.
  __device__ __forceinline__ void AfterScores(int tile) {
    if constexpr (kOneStage) {
      ptx::CopyWait<0>();
      __syncthreads();
      Load<kUnrolled>(tile + 1, true, false);
    }
  }

 private:
  template <int unroll>
  __device__ __forceinline__ void Load(int tile, bool k = true, bool v = true) {
    if (tile < tile_end_) {
      if (k) k_stream_.template Load<unroll>(KTile(base_, tile), len_kv_ - tile * kTileKv);
      if (v) v_stream_.template Load<unroll>(VTile(base_, tile), len_kv_ - tile * kTileKv);
    }
    ptx::CopyCommit();
  }

  int len_kv_;
  int tile_end_;
  unsigned base_;
  KStream k_stream_;
  VStream v_stream_;
};

// Epilogue, part 1: writes lse and turns o into the output of the warp's rows. Rows past the length
// become zeros, whatever o holds.
__device__ __forceinline__ void FinalizeRows(const Arguments& a, const Block& block, int i0,
                                             OnlineSoftmax& softmax, Output& o) {
  const Sequence& seq = block.seq;
  float factors[kBlocksM][2];
#pragma unroll
  for (int m = 0; m < kBlocksM; ++m)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int i = i0 + RowOf(m, r);
      float lse;
      softmax.Finalize(a, block.head, m, r, factors[m][r], lse);
      if (kHasDropout) factors[m][r] *= a.keep_scale * kKeptScale<kDtype>;
      if (i < seq.rows_q && a.lse.base != nullptr && threadIdx.x % 4 == 0) {
        *reinterpret_cast<float*>(RowAddress(a.lse, seq.idx, seq.first_q + i, block.head)) =
            i < seq.len_q ? lse : -kInfinity;
      }
    }
#pragma unroll
  for (int m = 0; m < kBlocksM; ++m)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const bool exists = i0 + RowOf(m, r) < seq.len_q;
#pragma unroll
      for (int d = 0; d < kBlocksD; ++d)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& value = o[m][d][2 * r + e];
          value = exists ? value * factors[m][r] : 0.0f;
        }
    }
}

// Epilogue, part 2: writes o to global memory, through shared memory that only this warp uses.
__device__ __forceinline__ void WriteOutput(const Arguments& a, const Block& block, int i0,
                                            int warp, unsigned base, const Output& o) {
  const auto put = [&](const auto& part) {
#pragma unroll
    for (int m = 0; m < kBlocksM; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r)
#pragma unroll
        for (int d = 0; d < kBlocksD; ++d) {
          part.Store(16 * m + 8 * r, 8 * d, o[m][d][2 * r], o[m][d][2 * r + 1]);
        }
    __syncwarp();
  };
  char* const to = RowAddress(a.o, block.seq.idx, block.seq.first_q + i0, block.head);
  const int num_rows = min(kRows, block.seq.rows_q - i0);
  if constexpr (kF32) return WriteRowsF32(a, a.o, to, num_rows, a.dim_vo, o);
  const int lane = ptx::RereadThreadIdx() % 32;
  if (WritesPacked<kDtype>(a, a.o, false)) {
    using Packed = PackedRows<config::dim_vo, kDtype, kRows, 32>;
    const Packed packed{base + static_cast<unsigned>(warp * Packed::kBytes)};
    put(packed.template PartAt<config::dim_vo>(0, 0));
    packed.Write(a.o.stride_row, to, num_rows, a.dim_vo, lane, PermuteRow);
  } else {
    using Staged = StagedRows<config::dim_vo, kDtype>;
    const Staged staged{base + static_cast<unsigned>(warp * kRows * Staged::kRowBytes)};
    put(staged.template PartAt<config::dim_vo>(0, 0));
    staged.Write(a, a.o, to, num_rows, a.dim_vo, false, lane, 32, PermuteRow);
  }
}

}  // namespace sm80::forward
