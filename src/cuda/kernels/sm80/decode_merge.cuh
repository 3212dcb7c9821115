// sm80/decode.cu: epilogue. Merges the results of the block's groups, then writes o and lse, or the
// split's partial result. Splits are merged in the same launch, in one of two ways:
//
// - If the blocks of a tile form a cluster (9.0; the rank of a block is its split), each block
//   merges a part of the rows and columns from the shared memory of all blocks.
// - Otherwise partial results pass through the workspace, and the last block to finish merges them.
//
// How the last block is found: each block stores kArrived into its own word in the workspace and
// then reads the words of all splits. Because of the fence between the two, at least one block sees
// all words set. Among the blocks that do, the one that swaps the first word back to 0 merges, and
// clears the other words. Words need no initial value, so no earlier kernel has to clear them, and
// a captured launch can be replayed. The probability that memory contains kArrived by accident is
// 2^-64.
#pragma once
#include "ptx/cluster.cuh"
#include "sm80/decode_scores.cuh"
#include "sm80/tile_output.cuh"

namespace sm80::decode {

constexpr unsigned long long kArrived = 0x9e3779b97f4a7c15ull;
constexpr int kColumns = 4;  // that a thread merges and writes in one iteration
constexpr int kItemsPerRow = kDim / kColumns;
constexpr int kSplitsInFlight = 8;  // splits whose loads are in flight together

using Staged = StagedRows<kDim, kDtype>;

// kColumns elements of a row of o, not yet divided by `sum`; relative to `max` in units of log2.
struct RowPart {
  float max = -kInfinity;
  float sum = 0.0f;
  float o[kColumns]{};
};

// The weight of a partial result with running max `max` in a result with the max `merged`.
__device__ __forceinline__ float WeightOf(float max, float merged) {
  return ptx::Exp2(max - (merged == -kInfinity ? 0.0f : merged));
}
__device__ __forceinline__ void Add(const float4& o, float sum, float weight, RowPart& to) {
  to.sum = fmaf(sum, weight, to.sum);
  to.o[0] = fmaf(o.x, weight, to.o[0]);
  to.o[1] = fmaf(o.y, weight, to.o[1]);
  to.o[2] = fmaf(o.z, weight, to.o[2]);
  to.o[3] = fmaf(o.w, weight, to.o[3]);
}

// Stores row r of this lane to row `row` of shared memory, times the factor. Restores the order of
// columns: MultiplyQuantizedV() leaves even columns in accumulator 2 d and odd ones in 2 d + 1.
__device__ __forceinline__ void StageQuantizedRow(unsigned tile, int row, int r, float factor,
                                                  const Output& o) {
#pragma unroll
  for (int d = 0; d < kBlocksD; d += 2)
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      ptx::StoreShared64(tile + Staged::At(row, 8 * d + LaneIdx() % 4 * 4 + 2 * e),
                         o[0][d][2 * r + e] * factor, o[0][d + 1][2 * r + e] * factor);
    }
}

// Stores each warp's o and (max, sum) to shared memory that overlays the tiles. factor_v: descale
// factor of o, with kQuantized.
__device__ __forceinline__ void StageRows(const Arguments& a, unsigned base,
                                          const OnlineSoftmax& softmax, float factor_v,
                                          const Output& o) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = GroupIdx() * kTileQ + 16 * WarpM() + LaneIdx() / 4 + 8 * r;
    const float2 stats = softmax.Stats(a, r);
    if (LaneIdx() % 4 == 0) {
      ptx::StoreShared64(base + kShared.stats + static_cast<unsigned>(8 * row), stats.x, stats.y);
    }
    if constexpr (kQuantized) {
      // A row that saw no key stays 0 even if the factor is not finite.
      const float factor = stats.y == 0.0f ? 0.0f : factor_v;
      StageQuantizedRow(base + kShared.k, row, r, factor, o);
    } else {
#pragma unroll
      for (int d = 0; d < kBlocksD; ++d) {
        ptx::StoreShared64(base + kShared.k + Staged::At(row, 8 * d + LaneIdx() % 4 * 2),
                           o[0][d][2 * r], o[0][d][2 * r + 1]);
      }
    }
  }
}

// Merges row r of the tile, columns from `column`, over all groups.
__device__ __forceinline__ RowPart MergeGroups(unsigned base, int r, int column) {
  RowPart merged;
  float2 stats[kGroups];
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    const unsigned row = static_cast<unsigned>(g * kTileQ + r);
    const uint2 loaded = ptx::LoadShared64(base + kShared.stats + 8 * row);
    stats[g] = {__uint_as_float(loaded.x), __uint_as_float(loaded.y)};
    merged.max = fmaxf(merged.max, stats[g].x);
  }
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    const uint4 o = ptx::LoadShared128(base + kShared.k + Staged::At(g * kTileQ + r, column));
    Add({__uint_as_float(o.x), __uint_as_float(o.y), __uint_as_float(o.z), __uint_as_float(o.w)},
        stats[g].y, WeightOf(stats[g].x, merged.max), merged);
  }
  return merged;
}

// The partial results of the tile's splits in the workspace.
struct WorkspacePartials {
  const DecodeParams& p;
  long long first;  // index of the tile's split 0 among all splits
  __device__ __forceinline__ WorkspacePartials(const DecodeParams& params, const Block& block)
      : p(params), first(1ll * block.tile * params.splits) {}

  __device__ __forceinline__ void Store(int split, int r, int column, const RowPart& part) const {
    *O(split, r, column) = {part.o[0], part.o[1], part.o[2], part.o[3]};
    if (column == 0) *Stats(split, r) = {part.max, part.sum};
  }
  __device__ __forceinline__ float4 LoadO(int split, int r, int column) const {
    return ptx::LoadGlobalL2(O(split, r, column));
  }
  __device__ __forceinline__ float2 LoadStats(int split, int r) const {
    return ptx::LoadGlobalL2(Stats(split, r));
  }
  __device__ __forceinline__ volatile unsigned long long* Arrival(int split) const {
    return p.arrivals + first + split;
  }

 private:
  __device__ __forceinline__ float4* O(int split, int r, int column) const {
    const long long row = (first + split) * p.tile_rows + r;
    return reinterpret_cast<float4*>(p.partial_o + row * (kDim * 4) + column * 4);
  }
  __device__ __forceinline__ float2* Stats(int split, int r) const {
    return reinterpret_cast<float2*>(p.partial_stats) + (first + split) * p.tile_rows + r;
  }
};

#if __CUDA_ARCH__ >= 900
// The partial results in the shared memory of the cluster's blocks. They replace the staged rows of
// group 0: the thread that stores a part of a row is the only one that has read it.
struct ClusterPartials {
  unsigned base;

  __device__ __forceinline__ void Store(int r, int column, const RowPart& part) const {
    ptx::StoreShared128(O(r, column), part.o[0], part.o[1], part.o[2], part.o[3]);
    if (column == 0) ptx::StoreShared64(Stats(r), part.max, part.sum);
  }
  __device__ __forceinline__ float4 LoadO(int split, int r, int column) const {
    return ptx::LoadCluster128(ptx::MapShared(O(r, column), static_cast<unsigned>(split)));
  }
  __device__ __forceinline__ float2 LoadStats(int split, int r) const {
    return ptx::LoadCluster64(ptx::MapShared(Stats(r), static_cast<unsigned>(split)));
  }

 private:
  __device__ __forceinline__ unsigned O(int r, int column) const {
    return base + kShared.k + Staged::At(r, column);
  }
  __device__ __forceinline__ unsigned Stats(int r) const {
    return base + kShared.merged_stats + static_cast<unsigned>(8 * r);
  }
};
#endif

// Merges splits in their order, so that the bits do not depend on which block merges.
template <class Partials>
__device__ __forceinline__ RowPart MergeSplits(const Partials& partials, int num_splits, int r,
                                               int column) {
  RowPart merged;
#pragma unroll 1
  for (int s0 = 0; s0 < num_splits; s0 += kSplitsInFlight) {
    float2 stats[kSplitsInFlight];
    float4 o[kSplitsInFlight];
#pragma unroll
    for (int n = 0; n < kSplitsInFlight; ++n) {
      stats[n] = {-kInfinity, 0.0f};
      o[n] = {};
      if (s0 + n >= num_splits) continue;
      stats[n] = partials.LoadStats(s0 + n, r);
      o[n] = partials.LoadO(s0 + n, r, column);
    }
    float max = merged.max;
#pragma unroll
    for (int n = 0; n < kSplitsInFlight; ++n) max = fmaxf(max, stats[n].x);
    const float before = WeightOf(merged.max, max);
    merged.max = max;
    merged.sum *= before;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) merged.o[c] *= before;
#pragma unroll
    for (int n = 0; n < kSplitsInFlight; ++n) {
      Add(o[n], stats[n].y, WeightOf(stats[n].x, max), merged);
    }
  }
  return merged;
}

// Announces the block's partial result. Returns true in all threads of the one block that merges.
__device__ __forceinline__ bool IsLast(const WorkspacePartials& partials, const Span& span,
                                       unsigned base) {
  __threadfence();
  __syncthreads();  // all threads have written their part of the partial result
  if (threadIdx.x < 32) {
    if (threadIdx.x == 0) {
      *partials.Arrival(span.split) = kArrived;
      __threadfence();
    }
    __syncwarp();
    bool all = true;
    for (int s = LaneIdx(); s < span.num_splits; s += 32) {
      all = all && *partials.Arrival(s) == kArrived;
    }
    all = __all_sync(~0u, all) != 0;
    if (threadIdx.x == 0) {
      auto* first = const_cast<unsigned long long*>(partials.Arrival(0));
      const bool merges = all && atomicCAS(first, kArrived, 0ull) == kArrived;
      ptx::StoreShared32(base + kShared.merges, merges ? 1u : 0u);
      __threadfence();
    }
  }
  __syncthreads();
  if (ptx::LoadShared32(base + kShared.merges) == 0) return false;
  for (int s = 1 + static_cast<int>(threadIdx.x); s < span.num_splits; s += kThreads) {
    *partials.Arrival(s) = 0;
  }
  return true;
}

// Writes a part of row r of o, and lse if it is the row's first part. A row that saw no key and has
// no sink gets o = 0 and lse = -inf, and so do rows past the length.
__device__ __forceinline__ void WriteRow(const Arguments& a, const Block& block, int r, int column,
                                         RowPart part) {
  const Row row = RowOf(a, block, r);
  const bool exists = row.i < block.seq.len_q;
  float factor = 1.0f;
  if (a.sinks != nullptr) {
    const float sink =
        kLog2E * *reinterpret_cast<const float*>(reinterpret_cast<const char*>(a.sinks) +
                                                 row.head * a.sinks_stride);
    const float with_sink = fmaxf(part.max, sink);
    if (with_sink > -kInfinity) {
      factor = ptx::Exp2(part.max - with_sink);
      part.sum = part.sum * factor + ptx::Exp2(sink - with_sink);
      part.max = with_sink;
    }
  }
  // Not "sum > 0": a NaN sum must not count as empty.
  const bool empty = !exists || part.sum == 0.0f;
  factor = empty ? 0.0f : factor / part.sum;
  if constexpr (kHasDropout) factor *= a.keep_scale;
  const long long i = block.seq.first_q + row.i;
  if (column == 0 && a.lse.base != nullptr) {
    *reinterpret_cast<float*>(RowAddress(a.lse, block.seq.idx, i, row.head)) =
        empty ? -kInfinity : part.max * kLn2 + logf(part.sum);
  }
  float o[kColumns];
#pragma unroll
  for (int c = 0; c < kColumns; ++c) o[c] = exists ? part.o[c] * factor : 0.0f;
  char* const to = RowAddress(a.o, block.seq.idx, i, row.head);
  if (WritesPacked<kDtype>(a, a.o, false)) {
    if (column < a.dim_vo) {
      *reinterpret_cast<uint2*>(to + column * kOperandBytes) = {ptx::Pack<kDtype>(o[0], o[1]),
                                                                ptx::Pack<kDtype>(o[2], o[3])};
    }
    return;
  }
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    if (column + c < a.dim_vo) {
      StoreElement(to + (column + c) * ElementBytes(a.o.type), a.o.type, Finite(a, o[c]));
    }
  }
}

// Calls visit(r, column) for the thread's items: kColumns columns of row r of the tile. The items
// are divided among `parts` blocks; this one is number `part`.
template <class Visit>
__device__ __forceinline__ void ForEachItem(int num_rows, int part, int parts, const Visit& visit) {
  const int items = num_rows * kItemsPerRow;
#pragma unroll 1
  for (int item = static_cast<int>(threadIdx.x) * parts + part; item < items;
       item += kThreads * parts) {
    visit(item / kItemsPerRow, item % kItemsPerRow * kColumns);
  }
}

#if __CUDA_ARCH__ >= 900
// Called by all blocks of a cluster whose split has keys.
__device__ __forceinline__ void FinishInCluster(const DecodeParams& p, const Block& block,
                                                const Span& span, unsigned base) {
  const ClusterPartials partials{base};
  ForEachItem(block.num_rows, 0, 1,
              [&](int r, int column) { partials.Store(r, column, MergeGroups(base, r, column)); });
  ptx::ClusterBarrier();
  ForEachItem(block.num_rows, span.split, span.num_splits, [&](int r, int column) {
    WriteRow(p.common, block, r, column, MergeSplits(partials, span.num_splits, r, column));
  });
  ptx::ClusterBarrier();  // a block's shared memory must exist until all others have read it
}
#endif

// The epilogue. Requires that StageRows() has overlaid the tiles and a barrier has followed.
__device__ __forceinline__ void Finish(const DecodeParams& p, const Block& block, const Span& span,
                                       unsigned base) {
#if __CUDA_ARCH__ >= 900
  if (span.num_splits > 1 && ptx::ClusterBlocks() > 1) {
    FinishInCluster(p, block, span, base);
    return;
  }
#endif
  const WorkspacePartials partials(p, block);
  ForEachItem(block.num_rows, 0, 1, [&](int r, int column) {
    const RowPart part = MergeGroups(base, r, column);
    if (span.num_splits == 1) {
      WriteRow(p.common, block, r, column, part);
    } else {
      partials.Store(span.split, r, column, part);
    }
  });
  if (span.num_splits == 1 || !IsLast(partials, span, base)) return;
  ForEachItem(block.num_rows, 0, 1, [&](int r, int column) {
    WriteRow(p.common, block, r, column, MergeSplits(partials, span.num_splits, r, column));
  });
}

}  // namespace sm80::decode
