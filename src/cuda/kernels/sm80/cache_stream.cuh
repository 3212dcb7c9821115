// Loads tiles of K and V in the type of q from a cache that is contiguous or paged, in that type or
// in an 8-bit type with descale factors.
#pragma once
#include "shared/element_8bit.cuh"
#include "shared/page_table.cuh"
#include "sm80/tile.cuh"

namespace sm80 {

// Loads consecutive tiles of kRows keys. Keys without a page, rows past the length and columns past
// the end of the tensor become zeros. The type of q is copied asynchronously. 8-bit types
// (config::kv_type) and config::element_access are loaded and stored synchronously.
template <int kDim, int kRows, int kThreads>
class CacheStream {
  using Layout = TileLayout<kDim>;
  static constexpr bool kConverts = Is8Bit(config::kv_type);
  static constexpr int kBytes = kConverts ? 1 : kElementBytes;
  static constexpr int kThreadsPerRow = Layout::kWide ? 8 : 4;
  static constexpr int kStep = kThreads / kThreadsPerRow;  // rows per pass
  static_assert(kRows % kStep == 0 && (kConverts || config::kv_type == config::dtype));

 public:
  // All arguments but `seq` and `head_kv` must be kernel parameters: references to them are kept.
  __device__ __forceinline__ CacheStream(const Cache& cache, const Sequence& seq, int head_kv,
                                         const StridedTensor& tensor, const int& dim,
                                         const Descale& descale, const int& descale_rows)
      : cache_(cache),
        tensor_(tensor),
        dim_(dim),
        descale_(descale),
        descale_rows_(descale_rows),
        seq_idx_(seq.idx),
        len_kv_(seq.len_kv),
        first_kv_(static_cast<int>(seq.first_kv)),
        head_kv_(head_kv) {}

  // Loads the tile that begins `left` keys before the end of the sequence. Not inlined: int8 at dim
  // 64 then spills 336 bytes instead of 560. Recomputes addresses in every tile: with all options
  // at dim 256 there are no registers to keep them.
  template <int unroll>
  __device__ __noinline__ void Load(unsigned to, int left) {
    const int thread = ptx::RereadThreadIdx();
    const char* const head = RowAddress(tensor_, 0, first_kv_, head_kv_);
#pragma unroll 1
    for (int row = thread / kThreadsPerRow; row < kRows; row += kStep) {
      CacheRow at{-1, 0};
      if (row < left) at = CacheRowOf(cache_, seq_idx_, len_kv_ - left + row);
      const char* from = head + at.block * tensor_.stride_batch + at.row * tensor_.stride_row;
      const float factor = kConverts && at.block >= 0 ? FactorOf(at) : 0.0f;
#pragma unroll 1
      for (int chunk = thread % kThreadsPerRow; chunk < Layout::kChunks; chunk += kThreadsPerRow) {
        LoadChunk(to + Layout::At(row, chunk), from, chunk * kChunkElements, at.block >= 0, factor);
      }
    }
  }

 private:
  __device__ __forceinline__ float FactorOf(CacheRow at) const {
    if (descale_.base == nullptr) return 1.0f;
    const float* const factors = descale_.base + head_kv_ * descale_.stride_head;
    if (descale_rows_ == 0) return factors[seq_idx_ * descale_.stride_batch];
    return factors[at.block * descale_.stride_batch + at.row * descale_.stride_row];
  }

  // Loads columns [column, column + kChunkElements) of the row at `from`, or zeros if the row does
  // not exist.
  __device__ __forceinline__ void LoadChunk(unsigned to, const char* from, int column, bool exists,
                                            float factor) const {
    const bool inside = exists && column < dim_;
    if constexpr (!kConverts && config::element_access == 0) {
      ptx::CopyAsync(to, inside ? from + column * kBytes : tensor_.base, inside ? 16 : 0);
      return;
    }
    float values[kChunkElements] = {};
    if constexpr (config::element_access == 0) {
      // Dims are multiples of 16 and rows are aligned: four bytes are one word.
#pragma unroll
      for (int n = 0; n < kChunkElements / 4; ++n) {
        if (!inside) continue;
        const unsigned word = reinterpret_cast<const unsigned*>(from + column)[n];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          values[4 * n + e] = factor * Converted(static_cast<unsigned char>(word >> (8 * e)));
        }
      }
    } else {
#pragma unroll
      for (int e = 0; e < kChunkElements; ++e) {
        if (!inside || column + e >= dim_) continue;
        const char* const at = from + (column + e) * kBytes;
        if constexpr (kConverts) {
          values[e] = factor * Converted(*reinterpret_cast<const unsigned char*>(at));
        } else {
          values[e] = LoadElement(at, config::dtype);
        }
      }
    }
    Store(to, values);
  }

  __device__ static __forceinline__ float Converted(unsigned char bits) {
    return From8Bit(bits, config::kv_type);
  }

  __device__ static __forceinline__ void Store(unsigned to, const float (&values)[4]) {
    ptx::StoreShared128(to, values[0], values[1], values[2], values[3]);
  }
  __device__ static __forceinline__ void Store(unsigned to, const float (&values)[8]) {
    float words[4];
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      words[n] = __uint_as_float(ptx::Pack<config::dtype>(values[2 * n], values[2 * n + 1]));
    }
    Store(to, words);
  }

  const Cache& cache_;
  const StridedTensor& tensor_;
  const int& dim_;
  const Descale& descale_;
  const int& descale_rows_;
  int seq_idx_;
  int len_kv_;
  int first_kv_;
  int head_kv_;
};

}  // namespace sm80
