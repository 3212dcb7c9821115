// A warp's part of a tile of bias or mask, [rows][columns] in shared memory: loaded, read and
// replaced by that warp alone, so that no other warp waits for it.
//
// A row's chunks of 16 bytes are swizzled as in tile.cuh, so that 8 rows side by side are read
// without bank conflicts.
#pragma once
#include "ptx/memory.cuh"
#include "shared/entry.cuh"

namespace shared {

template <int kRows, int kColumns, int kBytes>
struct PairTile {
  static constexpr int kRowBytes = kColumns * kBytes;
  static constexpr int kChunks = kRowBytes / 16;
  // Rows that fill 128 bytes share a swizzle.
  static constexpr int kShare = kChunks >= 8 ? 1 : 8 / kChunks;
  static_assert((kChunks & (kChunks - 1)) == 0 && kRows * kChunks % 32 == 0);

  static constexpr int kElements = 16 / kBytes;              // of a chunk
  static constexpr int kSide = kChunks < 32 ? kChunks : 32;  // lanes side by side in a row
  static constexpr int kStep = 32 / kSide;                   // rows that are loaded at once

  __device__ static __forceinline__ unsigned At(int row, int column) {
    const unsigned chunk = static_cast<unsigned>(column * kBytes / 16);
    constexpr int kFree = kChunks % 8 == 0 ? 7 : kChunks % 4 == 0 ? 3 : kChunks - 1;
    const unsigned swizzle = static_cast<unsigned>(row / kShare & kFree);
    return static_cast<unsigned>(row * kRowBytes + column * kBytes % 16) + ((chunk ^ swizzle) << 4);
  }

  // `from` is of the tile's element (0, 0), of which `rows` and `columns` are there; the others are
  // not read and become zeros. Asynchronous where it can be; ended by ptx::CopyCommit().
  __device__ static __forceinline__ void Load(unsigned to, const Pairs& pairs, const char* from,
                                              int rows, int columns) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if (pairs.vector != 0 && rows >= kRows && columns >= kColumns) {
      from += lane / kSide * pairs.stride_q + lane % kSide * 16;
#pragma unroll
      for (int i = 0; i < kRows / kStep; ++i, from += kStep * pairs.stride_q)
#pragma unroll
        for (int c = 0; c < kChunks / kSide; ++c) {
          const int column = (lane % kSide + c * kSide) * kElements;
          ptx::CopyAsync(to + At(lane / kSide + i * kStep, column), from + c * kSide * 16, 16);
        }
      return;
    }
#pragma unroll 1
    for (int n = lane; n < kRows * kChunks; n += 32) {
      const int row = n / kChunks;
      const int column = n % kChunks * kElements;
      const int there = row < rows ? columns - column : 0;
      const char* at = from + row * pairs.stride_q + column * pairs.stride_kv;
      if (pairs.vector != 0 && (there >= kElements || there <= 0)) {
        ptx::CopyAsync(to + At(row, column), there > 0 ? at : pairs.base, there > 0 ? 16 : 0);
      } else {
        LoadElements(to + At(row, column), at, pairs.stride_kv, there);
      }
    }
  }

  // A chunk, of which `there` elements are there.
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

  // Elements (row, column) and (row, column + 1), column even; `type` of a float tile.
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
  // Of a tile of bytes: the first in the low byte.
  __device__ static __forceinline__ unsigned Bytes(unsigned tile, int row, int column) {
    return ptx::LoadShared16(tile + At(row, column));
  }
};

}  // namespace shared
