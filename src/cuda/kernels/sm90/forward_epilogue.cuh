// Epilogue of a tile of queries: O / sum and lse. Each warp stores its 16 rows through its own part
// of shared memory, so warps need not wait for each other. The store overlaps with the next tile.
#pragma once
#include "shared/gradient.cuh"
#include "sm90/forward_consumer.cuh"

namespace sm90 {

template <class BlockConsumer>
struct Epilogue {
  BlockConsumer& c;
  const QueryTile& tile;
  Sequence seq;

  // Re-reads the lengths, so that they are not kept in registers through the loop over keys.
  __device__ __forceinline__ Epilogue(BlockConsumer& consumer, const QueryTile& query_tile)
      : c(consumer),
        tile(query_tile),
        seq(config::lengths == kNoLengths
                ? query_tile.seq
                : shared::SequenceOf(consumer.p.common, query_tile.seq.idx)) {}

  __device__ __forceinline__ void Run() const {
    const int row = tile.row + 64 * c.warpgroup + 16 * c.warp;  // the warp's first
    float factor[2];
    WriteLse(row + c.lane / 4, factor);
    ClearEmptyRows(factor);
    if constexpr (config::store_elements != 0) {
      StoreElements(row + c.lane / 4, factor);
      return;
    }
#pragma unroll
    for (int column = 0; column < kDimVo; column += kOColumns) {
      if (c.lane == 0) ptx::TmaStoreWaitRead();  // previous stores have read the staging memory
      __syncwarp();
      Stage(factor, column);
      Store(row, column);
    }
  }

 private:
  // O of a row that sees no key may not have been written, and 0 * NaN is NaN. Such rows are rare.
  __device__ __forceinline__ void ClearEmptyRows(const float (&factor)[2]) const {
    if (__any_sync(~0u, factor[0] == 0.0f || factor[1] == 0.0f) == 0) return;
#pragma unroll
    for (int i = 0; i < kDimVo / 2; ++i) {
      if (factor[i / 2 % 2] == 0.0f) c.o[i] = 0.0f;
    }
  }

  // What is staged of the columns from `column` of the block's part on.
  __device__ __forceinline__ void Store(int row, int column) const {
    if constexpr (kParts > 1) column += tile.part * kDimVo;
    if (config::lengths == kPacked && row + 16 > seq.rows_q) {
      StoreRows(row, column);
    } else {
      StoreTile(row, column);
    }
  }

  // Writes lse, and computes the factor of each row of O: 0 if the row sees no key or is past the
  // length.
  __device__ __forceinline__ void WriteLse(int first, float (&factor)[2]) const {
    const auto& a = c.p.common;
    float sink = -shared::kInfinity;
    if (a.sinks != nullptr) {
      sink =
          shared::kLog2E * *reinterpret_cast<const float*>(reinterpret_cast<const char*>(a.sinks) +
                                                           tile.head * a.sinks_stride);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int i = first + 8 * h;
      float lse;
      c.softmax.Finalize(h, sink, factor[h], lse);
      if constexpr (config::dropout != 0) factor[h] *= a.keep_scale * shared::kKeptScale<kDtype>;
      if (a.lse.base != nullptr && c.lane % 4 == 0 && i < seq.rows_q &&
          (kParts <= 1 || tile.part == 0)) {
        *reinterpret_cast<float*>(shared::RowAddress(a.lse, seq.idx, seq.first_q + i, tile.head)) =
            i < seq.len_q ? lse : -shared::kInfinity;
      }
      if constexpr (kF8) {
        factor[h] *= DescaleOf(c.p.descale_v, seq.idx, tile.head / a.heads_per_kv);
      }
      if (config::lengths != kNoLengths && i >= seq.len_q) factor[h] = 0.0f;
    }
  }

  // Stores from registers: the four lanes of a row store 8 columns at a time, 32 bytes in f32.
  __device__ __forceinline__ void StoreElements(int first, const float (&factor)[2]) const {
    const auto& a = c.p.common;
    const bool pairs = a.o.type == config::f32 && a.nonfinite_count == nullptr;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int i = first + 8 * h;
      if (i >= seq.rows_q) continue;
      char* const row = shared::RowAddress(a.o, seq.idx, seq.first_q + i, tile.head);
      if constexpr (kF8) {
        StoreElementsF8(row, h, factor[h], pairs);
        continue;
      }
#pragma unroll
      for (int n = 0; n < kDimVo / 8; ++n) {
        int column = 8 * n + 2 * (c.lane % 4);
        if constexpr (kParts > 1) column += tile.part * kDimVo;
        const float2 value = {c.o[4 * n + 2 * h] * factor[h], c.o[4 * n + 2 * h + 1] * factor[h]};
        if (pairs && column + 1 < a.dim_vo) {
          *reinterpret_cast<float2*>(row + 4 * column) = value;
        } else {
          StoreElement(row, column, value.x);
          StoreElement(row, column + 1, value.y);
        }
      }
    }
  }
  // The four columns of a lane in each 16, 16 n + 4 (lane % 4) and on (forward_transposer.cuh).
  __device__ __forceinline__ float4 Columns(int n, int h, float factor) const {
    const float* const o = c.o + 8 * n + 2 * h;
    return {o[0] * factor, o[4] * factor, o[1] * factor, o[5] * factor};
  }
  __device__ __forceinline__ void StoreElementsF8(char* row, int h, float factor,
                                                  bool vectors) const {
#pragma unroll
    for (int n = 0; n < kDimVo / 16; ++n) {
      const int column = 16 * n + 4 * (c.lane % 4);
      const float4 value = Columns(n, h, factor);
      if (vectors && column + 3 < c.p.common.dim_vo) {
        *reinterpret_cast<float4*>(row + 4 * column) = value;
      } else {
        StoreElement(row, column, value.x);
        StoreElement(row, column + 1, value.y);
        StoreElement(row, column + 2, value.z);
        StoreElement(row, column + 3, value.w);
      }
    }
  }
  __device__ __forceinline__ void StoreElement(char* row, int column, float value) const {
    const auto& a = c.p.common;
    if (column >= a.dim_vo) return;
    shared::StoreElement(row + column * shared::ElementBytes(a.o.type), a.o.type,
                         shared::Finite(a, value));
  }

  __device__ __forceinline__ unsigned Staged() const {
    return c.base + kShared.o + static_cast<unsigned>((64 * c.warpgroup + 16 * c.warp) * 128);
  }

  // Rounds columns of the warp's rows into shared memory, swizzled as TMA expects them.
  __device__ __forceinline__ void Stage(const float (&factor)[2], int column) const {
    if constexpr (kF8) {
      StageF8(factor, column);
      return;
    }
    const int r = c.lane % 16;
    const unsigned to = Staged() + static_cast<unsigned>(r * 128);
#pragma unroll
    for (int n = 0; n < kOColumns / 16; ++n) {
      const float* o = c.o + column / 2 + 8 * n;
      unsigned pairs[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        pairs[e] = ptx::Pack<kDtypeOut>(o[2 * e] * factor[e % 2], o[2 * e + 1] * factor[e % 2]);
      }
      const unsigned chunk = static_cast<unsigned>((n % 4 * 2 + c.lane / 16) ^ (r & 7));
      ptx::StoreMatrix(to + n / 4 * kTileQ * 128 + (chunk << 4), pairs[0], pairs[1], pairs[2],
                       pairs[3]);
    }
  }

  __device__ __forceinline__ void StageF8(const float (&factor)[2], int column) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int r = c.lane / 4 + 8 * h;
      const unsigned to = Staged() + static_cast<unsigned>(r * 128 + c.lane % 2 * 8);
#pragma unroll
      for (int n = 0; n < kOColumns / 16; ++n) {
        const float4 value = Columns(column / 16 + n, h, factor[h]);
        const unsigned chunk = static_cast<unsigned>((n % 4 * 2 + c.lane % 4 / 2) ^ (r & 7));
        ptx::StoreShared64(to + n / 4 * kTileQ * 128 + (chunk << 4),
                           __uint_as_float(ptx::Pack<kDtypeOut>(value.x, value.y)),
                           __uint_as_float(ptx::Pack<kDtypeOut>(value.z, value.w)));
      }
    }
  }

  __device__ __forceinline__ void StoreTile(int row, int column) const {
    ptx::FenceAsyncProxy();
    __syncwarp();
    if (c.lane != 0) return;
#pragma unroll
    for (int n = 0; n < kOColumns / 64; ++n) {
      ptx::TmaStore(&c.p.o, Staged() + n * kTileQ * 128, column + n * 64,
                    static_cast<int>(seq.first_q) + row, tile.head,
                    config::lengths == kPacked ? 0 : seq.idx);
    }
    ptx::TmaStoreCommit();
  }

  // For the last rows of a packed sequence: TMA would overwrite the next sequence, which follows in
  // memory.
  __device__ __forceinline__ void StoreRows(int row, int column) const {
    __syncwarp();
    const int rows = seq.rows_q - row;
    for (int n = c.lane; n < rows * kOColumns / 8; n += 32) {
      const int r = n / (kOColumns / 8);
      const int chunk = n % (kOColumns / 8);
      if (column + chunk * 8 >= c.p.common.dim_vo) continue;
      const uint4 value =
          ptx::LoadShared128(Staged() + static_cast<unsigned>(chunk / 8 * kTileQ * 128 + r * 128 +
                                                              ((chunk % 8 ^ (r & 7)) << 4)));
      *reinterpret_cast<uint4*>(
          shared::RowAddress(c.p.common.o, seq.idx, seq.first_q + row + r, tile.head) + column * 2 +
          chunk * 16) = value;
    }
    __syncwarp();
  }
};

}  // namespace sm90
