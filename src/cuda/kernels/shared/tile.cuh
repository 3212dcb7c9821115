// Tiles: rows of 16-bit elements in shared memory as ldmatrix reads them, and their loads.
//
// A row has dim / 8 chunks of 16 bytes. Chunk c of row r is kept at place c ^ x(r), so that the
// same chunk of 8 neighbouring rows lies in different banks: x(r) = r & 7 where rows are whole
// multiples of 128 bytes, else (r >> 1) & 3 (multiples of 64: two rows share the 128 bytes).
#pragma once
#include "config.cuh"
#include "ptx/memory.cuh"
#include "shared/element.cuh"
#include "shared/entry.cuh"

namespace shared {

template <int kDim>
struct TileLayout {
  static_assert(kDim % 32 == 0);
  static constexpr int kChunks = kDim / 8;
  static constexpr int kRowBytes = kDim * 2;
  static constexpr bool kWide = kChunks % 8 == 0;
  // x(r), in bytes. x(r + 8) = x(r), so that fragments 8 rows apart share it.
  __device__ static __forceinline__ unsigned Swizzle(int row) {
    return static_cast<unsigned>(kWide ? row & 7 : (row >> 1) & 3) << 4;
  }
  __device__ static __forceinline__ unsigned At(int row, int chunk) {
    return static_cast<unsigned>(row * kRowBytes) +
           ((static_cast<unsigned>(chunk) << 4) ^ Swizzle(row));
  }
};

// Element by element: for odd dims, odd addresses and f32 rows (a dout), which are rounded to
// `dtype`. `from` is where the tile's first row lies, of which `rows` are there.
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
    ptx::StoreShared16(to + TileLayout<kDim>::At(row, column / 8) + column % 8 * 2,
                       ptx::Pack<dtype>(value, 0.0f) & 0xffffu);
  }
}

// How the threads of a block share out a tile of kRows rows: kSide chunks side by side, kStep rows
// at once.
template <int kDim, int kRows, int kThreads>
struct TileShares {
  using Layout = TileLayout<kDim>;
  static constexpr int kSide = Layout::kWide ? 8 : 4;
  static constexpr int kStep = kThreads / kSide;
  static constexpr int kPasses = kRows / kStep;
  static constexpr int kColumns = Layout::kChunks / kSide;
  static_assert(kRows % kStep == 0 && kStep % 8 == 0);

  __device__ static __forceinline__ int Row() { return static_cast<int>(threadIdx.x) / kSide; }
  __device__ static __forceinline__ int Chunk() { return static_cast<int>(threadIdx.x) % kSide; }

  // Copies this thread's chunks to the tile at `to`; chunk c of pass i is at from(i, c). Rows from
  // `left` on and columns from `dim` on become zeros; `any` is some address of the tensor. Passes
  // are unrolled `unroll` times: a load that a block makes once costs more to fetch as code than to
  // run.
  template <int unroll, class From>
  __device__ static __forceinline__ void Copy(unsigned to, int left, int dim, const char* any,
                                              const From& from) {
    to += Layout::At(Row(), Chunk());
    const auto place = [&](int i, int c) {
      return to + static_cast<unsigned>(i * kStep * Layout::kRowBytes + c * kSide * 16);
    };
    if (left >= kRows && dim == kDim) {
#pragma unroll unroll
      for (int i = 0; i < kPasses; ++i)
#pragma unroll
        for (int c = 0; c < kColumns; ++c) ptx::CopyAsync(place(i, c), from(i, c), 16);
      return;
    }
#pragma unroll 1
    for (int i = 0; i < kPasses; ++i)
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        const bool inside = Row() + i * kStep < left && (Chunk() + c * kSide) * 8 < dim;
        ptx::CopyAsync(place(i, c), inside ? from(i, c) : any, inside ? 16 : 0);
      }
  }
};

// Loads of tiles: asynchronous, ended by ptx::CopyCommit(), but with config::by_elements (one
// kernel with both ways runs short of registers). Rows and columns past the tensor's are zeros.

// Tiles of kRows rows one after the other. Each thread keeps and moves the address of its first
// chunk, which is quicker in a short loop than finding it anew.
template <int kDim, int kRows, int kThreads, int dtype>
class TileStream {
  using Shares = TileShares<kDim, kRows, kThreads>;

 public:
  // `rows` and `dim` are the kernel's parameters; `from` is where the first tile's first row lies.
  __device__ __forceinline__ TileStream(const Rows& rows, const int& dim, const char* from)
      : rows_(rows),
        dim_(dim),
        from_(from + Shares::Row() * rows.stride_row + Shares::Chunk() * 16) {}

  // The next tile, of which `left` rows are there.
  template <int unroll = Shares::kPasses>
  __device__ __forceinline__ void Load(unsigned to, int left) {
    if constexpr (config::by_elements != 0) {
      LoadTileByElements<kDim, kRows, kThreads, dtype>(
          to, from_ - Shares::Row() * rows_.stride_row - Shares::Chunk() * 16, rows_.stride_row,
          left, dim_, rows_.type);
    } else {
      Shares::template Copy<unroll>(to, left, dim_, rows_.base, [&](int i, int c) {
        return from_ + i * Shares::kStep * rows_.stride_row + c * Shares::kSide * 16;
      });
    }
    from_ += kRows * rows_.stride_row;
  }

 private:
  const Rows& rows_;
  const int& dim_;
  const char* from_;
};

// Tiles anywhere in a tensor. The address of a tile is the same for all threads and kept so; a
// thread's own part of it is a 32-bit offset (Rows::vector says that it fits), which takes half the
// registers of an address.
template <int kDim, int kRows, int kThreads, int dtype>
class TileLoader {
  using Shares = TileShares<kDim, kRows, kThreads>;

 public:
  __device__ __forceinline__ TileLoader(const Rows& rows, const int& dim, const char* from)
      : rows_(rows), dim_(dim), from_(from) {}

  // The tile `offset` bytes behind `from`, of which `left` rows are there.
  template <int unroll = Shares::kPasses>
  __device__ __forceinline__ void Load(unsigned to, long long offset, int left) const {
    const char* from = from_ + offset;
    if constexpr (config::by_elements != 0) {
      LoadTileByElements<kDim, kRows, kThreads, dtype>(to, from, rows_.stride_row, left, dim_,
                                                       rows_.type);
    } else {
      const auto stride = static_cast<unsigned>(rows_.stride_row);
      const unsigned own = static_cast<unsigned>(Shares::Row()) * stride +
                           static_cast<unsigned>(Shares::Chunk() * 16);
      Shares::template Copy<unroll>(to, left, dim_, rows_.base, [&](int i, int c) {
        return from + (own + static_cast<unsigned>(i * Shares::kStep) * stride +
                       static_cast<unsigned>(c * Shares::kSide * 16));
      });
    }
  }

 private:
  const Rows& rows_;
  const int& dim_;
  const char* from_;
};

// Whether a part of so many elements of a row begins at a chunk whose bits those within it leave.
constexpr bool IsPowerOfTwo(int elements) {
  return (elements & (elements - 1)) == 0;
}

// The part of an ldmatrix address that is this lane's own, of a row tile that begins at a multiple
// of 8 rows.
//   A, and B of a transposed load: tiles (rows 0-7, rows 8-15) x (chunk, chunk + 1)
//   B: tiles (chunk, chunk + 1) x (rows 0-7, rows 8-15)
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
  // The pair of elements that this lane has of an accumulator's first row, and of its row 8.
  __device__ static __forceinline__ FragmentLane Pair(int lane = static_cast<int>(threadIdx.x) %
                                                                 32) {
    return {static_cast<unsigned>(lane / 4 * TileLayout<kDim>::kRowBytes + lane % 4 * 4),
            TileLayout<kDim>::Swizzle(lane / 4)};
  }
  // The same, from `chunk` on: for chunks whose bits `chunk` has not.
  __device__ __forceinline__ FragmentLane Behind(int chunk) const {
    return {row + static_cast<unsigned>((chunk & ~kLow) << 4),
            swizzle ^ static_cast<unsigned>((chunk & kLow) << 4)};
  }
  // Of rows first_row.. and chunks chunk, chunk + 1; first_row a multiple of 16, chunk even (a
  // pair: a multiple of 8, any). Only the low bits of the chunk are swizzled: the others are left
  // to the instruction's offset, as each sum in a register counts.
  __device__ __forceinline__ unsigned At(unsigned tile, int first_row, int chunk) const {
    return tile + row + ((static_cast<unsigned>(chunk & kLow) << 4) ^ swizzle) +
           static_cast<unsigned>(first_row * TileLayout<kDim>::kRowBytes + ((chunk & ~kLow) << 4));
  }
};

}  // namespace shared
