// Tiles: rows of elements of config::dtype in shared memory, swizzled for ldmatrix, and their
// loads.
//
// A row consists of 16-byte chunks. Chunk c of row r is stored at position c ^ x(r), so that the
// same chunk of 8 adjacent rows lies in different banks. x(r) is r & 7 if a row is a multiple of
// 128 bytes. Otherwise (a multiple of 64, two rows share 128 bytes) it is (r >> 1) & 3.
#pragma once
#include "config.cuh"
#include "ptx/memory.cuh"
#include "shared/element.cuh"
#include "shared/operand.cuh"
#include "shared/sequence.cuh"

namespace sm80 {

using namespace shared;
using attn::device::kOperandBytes;

inline constexpr int kElementBytes = ElementBytes(config::dtype);
inline constexpr int kChunkElements = 16 / kElementBytes;

template <int kDim>
struct TileLayout {
  static_assert(kDim % 32 == 0);
  static constexpr int kRowBytes = kDim * kElementBytes;
  static constexpr int kChunks = kRowBytes / 16;
  static constexpr bool kWide = kChunks % 8 == 0;
  // x(r) in bytes. x(r + 8) = x(r), so fragments 8 rows apart share it.
  __device__ static __forceinline__ unsigned Swizzle(int row) {
    return static_cast<unsigned>(kWide ? row & 7 : (row >> 1) & 3) << 4;
  }
  __device__ static __forceinline__ unsigned At(int row, int chunk) {
    return static_cast<unsigned>(row * kRowBytes) +
           ((static_cast<unsigned>(chunk) << 4) ^ Swizzle(row));
  }
};

// Loads a tile element by element: for dims, strides or addresses that are not 16-byte aligned, and
// for f32 rows (of dout), which are rounded to `dtype`. `from`: the tile's first row. The first
// `rows` rows exist; the others become zeros.
template <int kDim, int kRows, int kThreads, int dtype>
__device__ __forceinline__ void LoadTileByElements(unsigned to, const char* from,
                                                   long long stride_row, int rows, int dim,
                                                   int type) {
  const int bytes = ElementBytes(type);
#pragma unroll 1
  for (int n = static_cast<int>(threadIdx.x); n < kRows * kDim; n += kThreads) {
    const int row = n / kDim;
    const int column = n % kDim;
    float value = 0.0f;
    if (row < rows && column < dim) {
      value = LoadElement(from + row * stride_row + column * bytes, type);
    }
    const unsigned at = to + TileLayout<kDim>::At(row, column / kChunkElements) +
                        static_cast<unsigned>(column % kChunkElements * kElementBytes);
    if constexpr (dtype == config::f32) {
      ptx::StoreShared32(at, __float_as_uint(value));
    } else {
      ptx::StoreShared16(at, ptx::Pack<dtype>(value, 0.0f) & 0xffffu);
    }
  }
}

// How the threads of a block divide the loads of a tile of kRows rows: in each pass, kThreadsPerRow
// threads load adjacent chunks of each of kStep rows.
template <int kDim, int kRows, int kThreads>
struct TilePartition {
  using Layout = TileLayout<kDim>;
  static constexpr int kThreadsPerRow = Layout::kWide ? 8 : 4;
  static constexpr int kStep = kThreads / kThreadsPerRow;
  static constexpr int kPasses = kRows / kStep;
  static constexpr int kColumns = Layout::kChunks / kThreadsPerRow;
  static_assert(kRows % kStep == 0 && (kStep % 8 == 0 || (kStep == 4 && Layout::kWide)));

  __device__ static __forceinline__ int Row() {
    return static_cast<int>(threadIdx.x) / kThreadsPerRow;
  }
  __device__ static __forceinline__ int Chunk() {
    return static_cast<int>(threadIdx.x) % kThreadsPerRow;
  }
  // This thread's first chunk in the tile at `to`; chunk c of pass i is at Place(first, i, c).
  __device__ static __forceinline__ unsigned First(unsigned to) {
    return to + Layout::At(Row(), Chunk());
  }
  __device__ static __forceinline__ unsigned Place(unsigned first, int i, int c) {
    const auto at =
        first + static_cast<unsigned>(i * kStep * Layout::kRowBytes + c * kThreadsPerRow * 16);
    return kStep == 4 && i % 2 != 0 ? at ^ 64 : at;  // rows 4 apart differ in bit 2 of x(r)
  }

  // Copies this thread's chunks to the tile at `to`; chunk c of pass i is at from(i, c). Rows from
  // `left` on and columns from `dim` on become zeros; `any` is some valid address of the tensor.
  // Passes are unrolled `unroll` times: fetching the instructions of a load that a block runs once
  // costs more time than running it.
  template <int unroll, class From>
  __device__ static __forceinline__ void Copy(unsigned to, int left, int dim, const char* any,
                                              const From& from) {
    to = First(to);
    if (left >= kRows && dim == kDim) {
#pragma unroll unroll
      for (int i = 0; i < kPasses; ++i)
#pragma unroll
        for (int c = 0; c < kColumns; ++c) ptx::CopyAsync(Place(to, i, c), from(i, c), 16);
      return;
    }
#pragma unroll 1
    for (int i = 0; i < kPasses; ++i)
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        const bool inside =
            Row() + i * kStep < left && (Chunk() + c * kThreadsPerRow) * kChunkElements < dim;
        ptx::CopyAsync(Place(to, i, c), inside ? from(i, c) : any, inside ? 16 : 0);
      }
  }
};

// Loads of tiles are asynchronous; the caller commits them (ptx::CopyCommit()). With
// config::element_access they are synchronous. That is a separate kernel, because one kernel with
// both runs out of registers. Rows and columns past the end of the tensor become zeros.

// Loads consecutive tiles of kRows rows. Each thread keeps and advances the address of its first
// chunk, which is faster in a short loop than recomputing it.
template <int kDim, int kRows, int kThreads, int dtype>
class TileStream {
  using Partition = TilePartition<kDim, kRows, kThreads>;

 public:
  // `tensor` and `dim` must be kernel parameters, because references to them are kept. `from`: the
  // first row of the first tile.
  __device__ __forceinline__ TileStream(const StridedTensor& tensor, const int& dim,
                                        const char* from)
      : tensor_(tensor),
        dim_(dim),
        from_(from + Partition::Row() * tensor.stride_row + Partition::Chunk() * 16) {}

  // Loads the next tile; its first `left` rows exist.
  template <int unroll = Partition::kPasses>
  __device__ __forceinline__ void Load(unsigned to, int left) {
    if constexpr (config::element_access != 0) {
      LoadTileByElements<kDim, kRows, kThreads, dtype>(
          to, from_ - Partition::Row() * tensor_.stride_row - Partition::Chunk() * 16,
          tensor_.stride_row, left, dim_, tensor_.type);
    } else {
      Partition::template Copy<unroll>(to, left, dim_, tensor_.base, [&](int i, int c) {
        return from_ + i * Partition::kStep * tensor_.stride_row +
               c * Partition::kThreadsPerRow * 16;
      });
    }
    from_ += kRows * tensor_.stride_row;
  }

 private:
  const StridedTensor& tensor_;
  const int& dim_;
  const char* from_;
};

// Loads tiles from anywhere in a tensor. The tile's address is the same for all threads; a thread
// adds a 32-bit offset (StridedTensor::vector guarantees that it fits), which takes half the
// registers of an address.
template <int kDim, int kRows, int kThreads, int dtype>
class TileLoader {
  using Partition = TilePartition<kDim, kRows, kThreads>;

 public:
  __device__ __forceinline__ TileLoader(const StridedTensor& tensor, const int& dim,
                                        const char* from)
      : tensor_(tensor), dim_(dim), from_(from) {}

  // Loads the tile `offset` bytes after `from`; its first `left` rows exist.
  template <int unroll = Partition::kPasses>
  __device__ __forceinline__ void Load(unsigned to, long long offset, int left) const {
    const char* from = from_ + offset;
    if constexpr (config::element_access != 0) {
      LoadTileByElements<kDim, kRows, kThreads, dtype>(to, from, tensor_.stride_row, left, dim_,
                                                       tensor_.type);
    } else {
      const auto stride = static_cast<unsigned>(tensor_.stride_row);
      const unsigned own = static_cast<unsigned>(Partition::Row()) * stride +
                           static_cast<unsigned>(Partition::Chunk() * 16);
      Partition::template Copy<unroll>(to, left, dim_, tensor_.base, [&](int i, int c) {
        return from + (own + static_cast<unsigned>(i * Partition::kStep) * stride +
                       static_cast<unsigned>(c * Partition::kThreadsPerRow * 16));
      });
    }
  }

  // Replaces the elements of a tile in f32, that this thread loaded and whose load has ended, by
  // change(element).
  template <class Change>
  __device__ static __forceinline__ void ChangeOwn(unsigned tile, const Change& change) {
    if constexpr (config::element_access != 0) {
      for (int n = static_cast<int>(threadIdx.x); n < kRows * kDim; n += kThreads) {
        const int column = n % kDim;
        const unsigned at = tile + Partition::Layout::At(n / kDim, column / kChunkElements) +
                            static_cast<unsigned>(column % kChunkElements * 4);
        ptx::StoreShared32(at, change(ptx::LoadShared32(at)));
      }
    } else {
      const unsigned first = Partition::First(tile);
#pragma unroll
      for (int i = 0; i < Partition::kPasses; ++i)
#pragma unroll
        for (int c = 0; c < Partition::kColumns; ++c) {
          const unsigned at = Partition::Place(first, i, c);
          const uint4 x = ptx::LoadShared128(at);
          ptx::StoreShared128(at, __uint_as_float(change(x.x)), __uint_as_float(change(x.y)),
                              __uint_as_float(change(x.z)), __uint_as_float(change(x.w)));
        }
    }
  }

 private:
  const StridedTensor& tensor_;
  const int& dim_;
  const char* from_;
};

// If true, parts of `elements` begin at chunk indices that have no bits in common with the indices
// of chunks within a part.
constexpr bool IsPowerOfTwo(int elements) {
  return (elements & (elements - 1)) == 0;
}

// The part of an ldmatrix address that depends on the lane, for a tile that begins at a multiple of
// 8 rows. Order of the four 8 x 8 matrices:
//   RowsFirst     (rows 0-7, rows 8-15) x (chunk, chunk + 1): for A, and for B of a transposed load
//   ColumnsFirst  (chunk, chunk + 1) x (rows 0-7, rows 8-15): for B
template <int kDim>
struct FragmentLane {
  static constexpr int kLow = TileLayout<kDim>::kWide ? 7 : 3;  // swizzled bits of a chunk
  unsigned row;                                                 // bytes
  unsigned swizzle;                                             // bytes
  __device__ static __forceinline__ FragmentLane
  RowsFirst(int lane = static_cast<int>(threadIdx.x) % 32) {
    return {static_cast<unsigned>(lane % 16 * TileLayout<kDim>::kRowBytes),
            static_cast<unsigned>(lane / 16 << 4) ^ TileLayout<kDim>::Swizzle(lane % 16)};
  }
  __device__ static __forceinline__ FragmentLane
  ColumnsFirst(int lane = static_cast<int>(threadIdx.x) % 32) {
    const int row = (lane & 7) + ((lane >> 4) << 3);
    return {static_cast<unsigned>(row * TileLayout<kDim>::kRowBytes),
            static_cast<unsigned>(((lane >> 3) & 1) << 4) ^ TileLayout<kDim>::Swizzle(row)};
  }
  // The address of the pair of elements that lane l holds in row l / 4 of an accumulator.
  __device__ static __forceinline__ FragmentLane Pair(int lane = static_cast<int>(threadIdx.x) %
                                                                 32) {
    return {static_cast<unsigned>(lane / 4 * TileLayout<kDim>::kRowBytes + lane % 4 * 4),
            TileLayout<kDim>::Swizzle(lane / 4)};
  }
  // The same, moved to `chunk`. Chunks that are then added in At() must have no bits in common with
  // it.
  __device__ __forceinline__ FragmentLane StartingAt(int chunk) const {
    return {row + static_cast<unsigned>((chunk & ~kLow) << 4),
            swizzle ^ static_cast<unsigned>((chunk & kLow) << 4)};
  }
  // Returns the address for rows from first_row and chunks {chunk, chunk + 1}. first_row is a
  // multiple of 16 and chunk is even; with Pair(), first_row is a multiple of 8 and chunk is any.
  // Only the low bits of the chunk are swizzled; the others become the instruction's immediate
  // offset, which saves registers.
  __device__ __forceinline__ unsigned At(unsigned tile, int first_row, int chunk) const {
    return tile + row + ((static_cast<unsigned>(chunk & kLow) << 4) ^ swizzle) +
           static_cast<unsigned>(first_row * TileLayout<kDim>::kRowBytes + ((chunk & ~kLow) << 4));
  }
};

}  // namespace sm80
