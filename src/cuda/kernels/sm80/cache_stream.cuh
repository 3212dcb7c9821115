// Tiles of K and V in f32 from a cache: contiguous or in pages, f32 or int8 with factors.
#pragma once
#include "shared/page_table.cuh"
#include "sm80/tile.cuh"

namespace sm80 {

// Consecutive tiles of kRows keys. Keys without a page, rows past the length and columns past the
// tensor's are zeros. f32 is copied asynchronously, int8 (config::kv_type) and
// config::element_access are stored at once.
template <int kDim, int kRows, int kThreads>
class CacheStream {
  using Layout = TileLayout<kDim>;
  static constexpr bool kInt8 = config::kv_type == config::i8;
  static constexpr int kSide = Layout::kWide ? 8 : 4;  // threads of a row
  static constexpr int kStep = kThreads / kSide;       // rows per pass
  static_assert(config::dtype == config::f32 && kRows % kStep == 0);
  static_assert(kInt8 || config::kv_type == config::f32);

 public:
  // What follows is the same for both tensors. `tensor` and `dim` are kernel parameters; keys come
  // from `first` on.
  __device__ __forceinline__ CacheStream(const Cache& cache, const Sequence& seq, int head_kv,
                                         int first, const StridedTensor& tensor, const int& dim,
                                         const Descale& descale, bool descale_rows)
      : cache_(cache),
        tensor_(tensor),
        dim_(dim),
        descale_(descale),
        descale_rows_(descale_rows),
        seq_idx_(seq.idx),
        key_(first),
        from_(RowAddress(tensor, 0, seq.first_kv, head_kv)),
        factors_(descale.base + head_kv * descale.stride_head) {}

  // Loads the next tile; `left` of its keys exist.
  template <int unroll>
  __device__ __forceinline__ void Load(unsigned to, int left) {
    const int thread = static_cast<int>(threadIdx.x);
#pragma unroll 1
    for (int row = thread / kSide; row < kRows; row += kStep) {
      CacheRow at{-1, 0};
      if (row < left) at = CacheRowOf(cache_, seq_idx_, key_ + row);
      const char* from = from_ + at.block * tensor_.stride_batch + at.row * tensor_.stride_row;
      const float factor = kInt8 && at.block >= 0 ? FactorOf(at) : 0.0f;
#pragma unroll 1
      for (int chunk = thread % kSide; chunk < Layout::kChunks; chunk += kSide) {
        LoadChunk(to + Layout::At(row, chunk), from, chunk * kChunkElements, at.block >= 0, factor);
      }
    }
    key_ += kRows;
  }

 private:
  __device__ __forceinline__ float FactorOf(CacheRow at) const {
    if (descale_.base == nullptr) return 1.0f;
    if (!descale_rows_) return factors_[seq_idx_ * descale_.stride_batch];
    return factors_[at.block * descale_.stride_batch + at.row * descale_.stride_row];
  }

  // Columns [column, column + 4) of the row at `from`, or zeros if it is not `there`.
  __device__ __forceinline__ void LoadChunk(unsigned to, const char* from, int column, bool there,
                                            float factor) const {
    if constexpr (!kInt8 && config::element_access == 0) {
      const bool inside = there && column < dim_;
      ptx::CopyAsync(to, inside ? from + column * 4 : tensor_.base, inside ? 16 : 0);
    } else {
      float values[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        values[e] = 0.0f;
        if (!there || column + e >= dim_) continue;
        if constexpr (kInt8) {
          values[e] =
              factor * static_cast<float>(reinterpret_cast<const signed char*>(from)[column + e]);
        } else {
          values[e] = reinterpret_cast<const float*>(from)[column + e];
        }
      }
      ptx::StoreShared128(to, values[0], values[1], values[2], values[3]);
    }
  }

  const Cache& cache_;
  const StridedTensor& tensor_;
  const int& dim_;
  const Descale& descale_;
  bool descale_rows_;
  int seq_idx_;
  int key_;           // the next tile's first
  const char* from_;  // key 0 of the sequence, or of page 0 or sequence 0
  const float* factors_;
};

}  // namespace sm80
