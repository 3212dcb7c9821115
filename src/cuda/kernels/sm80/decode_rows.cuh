// sm80/decode.cu: the rows of a block, the keys that they see, and how the keys are split.
//
// All queries of all query heads that share a key head are rows of the same tiles: row r of (b,
// head_kv) is query r / heads_per_kv of query head head_kv * heads_per_kv + r % heads_per_kv.
#pragma once
#include "config.cuh"
#include "shared/page_table.cuh"
#include "shared/score.cuh"
#include "shared/sequence.cuh"
#include "sm80/decode_params.cuh"
#include "sm80/product.cuh"
#include "sm80/sizes.cuh"
#include "sm80/tile.cuh"

namespace sm80::decode {

using attn::device::DecodeParams;

constexpr int kDim = config::dim_qk;
// 8-bit K and V are converted to f16 for the products, and so are Q and P: f16 represents every
// value of the 8-bit types (decode_cache.cuh).
constexpr int kKvType = config::kv_type;
constexpr bool kQuantized = kKvType != kDtype;
constexpr bool kDescaleRows = config::descale_rows != 0;
constexpr int kMmaType = kQuantized ? config::f16 : kDtype;
constexpr int kKvBytes = attn::device::KvBytes(kQuantized);
using KvLayout = TileLayout<kDim * kKvBytes / kOperandBytes>;  // of rows of K and V
constexpr int kWarpsM = kTileQ / 16;       // warps per group: 16 rows each, the same keys
constexpr int kGroups = kWarps / kWarpsM;  // of warps; group g processes tiles g, g + kGroups, ...
constexpr int kSlice = kTileKv / kWarpsM;  // rows of a tile that a warp loads
constexpr int kBlocksN = kTileKv / 8;      // accumulators of 8 keys
constexpr int kBlocksK = kDim / 16;
constexpr int kBlocksD = kDim / 8;
// One kernel supports all options, to limit the number of kernels. At run time it applies ALiBi,
// bias, mask and pages if their tensors are given.
constexpr bool kOptions = config::options != 0;
constexpr bool kPaged = config::paged != 0;
constexpr bool kHasDropout = config::dropout != 0;
constexpr attn::device::DecodeShared kShared =
    attn::device::DecodeSharedOf(kTileQ, kTileKv, kWarps, kStages, kDim, kQuantized, kDescaleRows);
// If true, the softmax receives scores in units of log2, otherwise raw products.
constexpr bool kScaledScores = kHasScoreMod || kQuantized;
static_assert(!kDescaleRows || kQuantized);
static_assert(kOptions ? kPaged && kHasScoreMod : !kHasDropout);
static_assert(config::dim_vo == kDim && kDim % 64 == 0 && kTileQ % 16 == 0);
static_assert(kWarps % kWarpsM == 0 && kTileKv % (16 * kWarpsM) == 0 && kStages >= 2);
static_assert(kSlice == attn::device::DecodeSliceOf(kDim, kTileQ, kQuantized) && kSlice <= 32);
static_assert(kWarps * 16 * kDim * 4 <= kShared.present);

using Scores = float[1][kBlocksN][4];
using Output = float[1][kBlocksD][4];
using QFragments = unsigned[kDim > 128 ? 1 : kBlocksK][4];

__device__ __forceinline__ int LaneIdx() {
  return static_cast<int>(threadIdx.x) % 32;
}
// The warp's rows of the tile are [16 WarpM(), 16 WarpM() + 16).
__device__ __forceinline__ int WarpM() {
  return static_cast<int>(threadIdx.x) / 32 % kWarpsM;
}
__device__ __forceinline__ int GroupIdx() {
  return static_cast<int>(threadIdx.x) / 32 / kWarpsM;
}

struct Block {
  Sequence seq;
  int head_kv;
  int first_row;  // of the tile, among the rows of (b, head_kv)
  int num_rows;   // rows of the tile that outputs have; <= 0 if none
  int split;
  int tile;  // index of the tile among all partial results
};

__device__ __forceinline__ Block BlockOf(const DecodeParams& p) {
  const Arguments& a = p.common;
  const unsigned row_tile = blockIdx.x % static_cast<unsigned>(p.row_tiles);
  unsigned rest = blockIdx.x / static_cast<unsigned>(p.row_tiles);
  Block block;
  block.split = static_cast<int>(rest % static_cast<unsigned>(p.splits));
  rest /= static_cast<unsigned>(p.splits);
  block.head_kv = static_cast<int>(rest % static_cast<unsigned>(a.heads_kv));
  block.seq = WithNewRows(
      a, p.cache, SequenceOf(a, static_cast<int>(rest / static_cast<unsigned>(a.heads_kv))));
  block.first_row = static_cast<int>(row_tile) * kTileQ;
  block.num_rows = min(kTileQ, block.seq.rows_q * a.heads_per_kv - block.first_row);
  block.tile = static_cast<int>(rest) * p.row_tiles + static_cast<int>(row_tile);
  return block;
}

// Row r of the block's tile.
struct Row {
  int i;     // query
  int head;  // query head
};
__device__ __forceinline__ Row RowOf(const Arguments& a, const Block& block, int r) {
  const int row = block.first_row + r;
  const int i = row / a.heads_per_kv;
  return {i, block.head_kv * a.heads_per_kv + row - i * a.heads_per_kv};
}

// The keys [begin, end) that the block's split covers.
struct Span {
  int begin;
  int end;
  int split;       // of num_splits
  int num_splits;  // splits that have keys, at least 1; blocks of other splits exit
};

// With split_keys, splits begin at multiples of split_keys, so that they depend neither on other
// sequences of the batch nor on the length.
__device__ __forceinline__ Span SpanOf(const DecodeParams& p, int split, TileRange seen) {
  const int begin = min(seen.any_begin, seen.any_end);
  const int end = seen.any_end;
  if (p.split_keys > 0) {
    const int first = begin / p.split_keys;
    const int past = (end + p.split_keys - 1) / p.split_keys;
    const int from = (first + split) * p.split_keys;
    return {max(begin, from), min(end, from + p.split_keys), split, max(past - first, 1)};
  }
  constexpr int kStep = kGroups * kTileKv;
  const int each = ((end - begin + p.splits - 1) / p.splits + kStep - 1) / kStep * kStep;
  const int count = each > 0 ? (end - begin + each - 1) / each : 1;
  const int from = begin + split * each;
  return {from, min(end, from + each), split, max(count, 1)};
}

// The keys that the warp's rows see.
class Visibility {
 public:
  // Every warp computes the range of the tile's rows itself, which avoids a barrier of the block.
  __device__ __forceinline__ Visibility(const DecodeParams& p, const Block& block) {
    TileRange of_lane;
    const int own = 16 * WarpM() + LaneIdx();
    if (LaneIdx() < 16) keys_ = KeysOf(p.common, block, own, of_lane);
    warp_ = ReduceWarp(of_lane);
    tile = warp_;
    if constexpr (kWarpsM > 1) {
      TileRange others;
#pragma unroll 1
      for (int r = LaneIdx(); r < kTileQ; r += 32) KeysOf(p.common, block, r, others);
      tile = ReduceWarp(others);
    }
  }

  // Intersects each row's range with the span.
  __device__ __forceinline__ void Clip(const Span& span) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = LaneIdx() / 4 + 8 * r;
      begin_[r] = max(__shfl_sync(~0u, keys_.begin, row), span.begin);
      end_[r] = min(__shfl_sync(~0u, keys_.end, row), span.end);
    }
    // With dropout the first tile may begin before the span (FirstKey()).
    if constexpr (kHasDropout) warp_.all_begin = max(warp_.all_begin, span.begin);
    warp_.all_end = min(warp_.all_end, span.end);
  }

  // Whether some row of the warp does not see every key of the tile.
  __device__ __forceinline__ bool IsPartial(int j0) const {
    return j0 < warp_.all_begin || j0 + kTileKv > warp_.all_end;
  }
  __device__ __forceinline__ void Hide(int j0, Scores& s) const {
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int n = 0; n < kBlocksN; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int j = j0 + 8 * n + LaneIdx() % 4 * 2 + e;
          if (j < begin_[r] || j >= end_[r]) s[0][n][2 * r + e] = -kInfinity;
        }
  }

  TileRange tile;  // of the tile's rows

 private:
  __device__ __forceinline__ static KeyRange KeysOf(const Arguments& a, const Block& block, int r,
                                                    TileRange& range) {
    KeyRange keys;
    const Row row = RowOf(a, block, r);
    if (r < block.num_rows && row.i < block.seq.len_q) {
      keys = VisibleKeys(a, block.seq, row.i);
      Include(range, keys);
    }
    return keys;
  }

  KeyRange keys_;  // of row LaneIdx() < 16
  TileRange warp_;
  int begin_[2], end_[2];  // of this lane's rows
};

}  // namespace sm80::decode
