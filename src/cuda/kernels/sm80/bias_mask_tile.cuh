// A warp's part of a tile of bias or mask, [rows][columns] in shared memory. The warp that loads it
// is the only one that reads and replaces it, so no other warp waits for it.
//
// A row's chunks of 16 bytes are swizzled as in tile.cuh, so that 8 adjacent rows are read without
// bank conflicts.
#pragma once
#include "ptx/memory.cuh"
#include "shared/score_entries.cuh"
#include "shared/sequence.cuh"

namespace sm80 {

using namespace shared;

template <int kRows, int kColumns, int kBytes>
struct BiasMaskTile {
  static constexpr int kRowBytes = kColumns * kBytes;
  static constexpr int kChunks = kRowBytes / 16;
  static constexpr int kLanes = kRows * kChunks < 32 ? kRows * kChunks : 32;  // that load
  static_assert((kChunks & (kChunks - 1)) == 0 && (kRows * kChunks) % kLanes == 0);
  // Rows that share 128 bytes share a swizzle.
  static constexpr int kShare = kChunks >= 8 ? 1 : 8 / kChunks;

  static constexpr int kElements = 16 / kBytes;                      // per chunk
  static constexpr int kSide = kChunks < kLanes ? kChunks : kLanes;  // lanes per row
  static constexpr int kStep = kLanes / kSide;                       // rows loaded per pass

  __device__ static __forceinline__ unsigned At(int row, int column) {
    const unsigned chunk = static_cast<unsigned>(column * kBytes / 16);
    constexpr int kFree = kChunks % 8 == 0 ? 7 : kChunks % 4 == 0 ? 3 : kChunks - 1;
    const unsigned swizzle = static_cast<unsigned>(row / kShare & kFree);
    return static_cast<unsigned>(row * kRowBytes + column * kBytes % 16) + ((chunk ^ swizzle) << 4);
  }

  // Loads the tile at `from`; `rows` x `columns` of its elements exist, the others become zeros.
  // Asynchronous if the tensor has vector access; ends with ptx::CopyCommit().
  __device__ static __forceinline__ void Load(unsigned to, const ScoreTensor& tensor,
                                              const char* from, int rows, int columns) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if (kLanes < 32 && lane >= kLanes) return;
    if (tensor.vector != 0 && rows >= kRows && columns >= kColumns) {
      from += lane / kSide * tensor.stride_q + lane % kSide * 16;
#pragma unroll
      for (int i = 0; i < kRows / kStep; ++i, from += kStep * tensor.stride_q)
#pragma unroll
        for (int c = 0; c < kChunks / kSide; ++c) {
          const int column = (lane % kSide + c * kSide) * kElements;
          ptx::CopyAsync(to + At(lane / kSide + i * kStep, column), from + c * kSide * 16, 16);
        }
      return;
    }
#pragma unroll 1
    for (int n = lane; n < kRows * kChunks; n += kLanes) {
      const int row = n / kChunks;
      const int column = n % kChunks * kElements;
      const int there = row < rows ? columns - column : 0;
      const char* at = from + row * tensor.stride_q + column * tensor.stride_kv;
      if (tensor.vector != 0 && (there >= kElements || there <= 0)) {
        ptx::CopyAsync(to + At(row, column), there > 0 ? at : tensor.base, there > 0 ? 16 : 0);
      } else {
        LoadElements(to + At(row, column), at, tensor.stride_kv, there);
      }
    }
  }

  // Loads a chunk element by element; `there` of its elements exist.
  __device__ static __forceinline__ void LoadElements(unsigned to, const char* at, long long stride,
                                                      int there) {
#pragma unroll 1
    for (int e = 0; e < kElements; ++e, at += stride) {
      if constexpr (kBytes == 4) {
        const unsigned value = e < there ? *reinterpret_cast<const unsigned*>(at) : 0;
        ptx::StoreShared32(to + 4 * e, value);
      } else if constexpr (kBytes == 2) {
        const unsigned value = e < there ? *reinterpret_cast<const unsigned short*>(at) : 0;
        ptx::StoreShared16(to + 2 * e, value);
      } else {
        const unsigned value = e < there ? *reinterpret_cast<const unsigned char*>(at) : 0;
        ptx::StoreShared8(to + e, value);
      }
    }
  }

  // Elements (row, column) and (row, column + 1), column even, of a tile of `type`.
  template <int type>
  __device__ static __forceinline__ float2 Floats(unsigned tile, int row, int column) {
    if constexpr (type == config::f32) {
      const uint2 pair = ptx::LoadShared64(tile + At(row, column));
      return {__uint_as_float(pair.x), __uint_as_float(pair.y)};
    } else {
      const unsigned pair = ptx::LoadShared32(tile + At(row, column));
      return {ptx::Low<type>(pair), ptx::High<type>(pair)};
    }
  }
  // The same of a tile of bytes: the first in the low byte.
  __device__ static __forceinline__ unsigned Bytes(unsigned tile, int row, int column) {
    return ptx::LoadShared16(tile + At(row, column));
  }
};

}  // namespace sm80
