// A warp's part of a tile of bias or mask, [rows][columns] in shared memory. Only the warp that
// loads it reads it and replaces it, so no other warp waits for it.
//
// The 16-byte chunks of a row are swizzled as in tile.cuh, so that 8 adjacent rows are read without
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
  static constexpr int kLanes = kRows * kChunks < 32 ? kRows * kChunks : 32;  // lanes that load
  static_assert((kChunks & (kChunks - 1)) == 0 && (kRows * kChunks) % kLanes == 0);
  // Rows in the same 128 bytes have the same swizzle.
  static constexpr int kRowsPerSwizzle = kChunks >= 8 ? 1 : 8 / kChunks;

  static constexpr int kElements = 16 / kBytes;  // per chunk
  static constexpr int kLanesPerRow = kChunks < kLanes ? kChunks : kLanes;
  static constexpr int kStep = kLanes / kLanesPerRow;  // rows loaded per pass

  __device__ static __forceinline__ unsigned At(int row, int column) {
    const unsigned chunk = static_cast<unsigned>(column * kBytes / 16);
    constexpr int kFree = kChunks % 8 == 0 ? 7 : kChunks % 4 == 0 ? 3 : kChunks - 1;
    const unsigned swizzle = static_cast<unsigned>(row / kRowsPerSwizzle & kFree);
    return static_cast<unsigned>(row * kRowBytes + column * kBytes % 16) + ((chunk ^ swizzle) << 4);
  }

  // Loads the tile at `from`. `rows` x `columns` of its elements exist; the others become zeros.
  // The copies are asynchronous if the tensor has vector access; the caller commits them.
  __device__ static __forceinline__ void Load(unsigned to, const ScoreTensor& tensor,
                                              const char* from, int rows, int columns) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if (kLanes < 32 && lane >= kLanes) return;
    if (tensor.vector != 0 && rows >= kRows && columns >= kColumns) {
      from += lane / kLanesPerRow * tensor.stride_q + lane % kLanesPerRow * 16;
#pragma unroll
      for (int i = 0; i < kRows / kStep; ++i, from += kStep * tensor.stride_q)
#pragma unroll
        for (int c = 0; c < kChunks / kLanesPerRow; ++c) {
          const int column = (lane % kLanesPerRow + c * kLanesPerRow) * kElements;
          ptx::CopyAsync(to + At(lane / kLanesPerRow + i * kStep, column),
                         from + c * kLanesPerRow * 16, 16);
        }
      return;
    }
#pragma unroll 1
    for (int n = lane; n < kRows * kChunks; n += kLanes) {
      const int row = n / kChunks;
      const int column = n % kChunks * kElements;
      const int num_valid = row < rows ? columns - column : 0;
      const char* at = from + row * tensor.stride_q + column * tensor.stride_kv;
      if (tensor.vector != 0 && (num_valid >= kElements || num_valid <= 0)) {
        ptx::CopyAsync(to + At(row, column), num_valid > 0 ? at : tensor.base,
                       num_valid > 0 ? 16 : 0);
      } else {
        LoadElements(to + At(row, column), at, tensor.stride_kv, num_valid);
      }
    }
  }

  // Loads a chunk element by element; its first `num_valid` elements exist, the others become
  // zeros.
  __device__ static __forceinline__ void LoadElements(unsigned to, const char* at, long long stride,
                                                      int num_valid) {
#pragma unroll 1
    for (int e = 0; e < kElements; ++e, at += stride) {
      if constexpr (kBytes == 4) {
        const unsigned value = e < num_valid ? *reinterpret_cast<const unsigned*>(at) : 0;
        ptx::StoreShared32(to + 4 * e, value);
      } else if constexpr (kBytes == 2) {
        const unsigned value = e < num_valid ? *reinterpret_cast<const unsigned short*>(at) : 0;
        ptx::StoreShared16(to + 2 * e, value);
      } else {
        const unsigned value = e < num_valid ? *reinterpret_cast<const unsigned char*>(at) : 0;
        ptx::StoreShared8(to + e, value);
      }
    }
  }

  // Returns elements (row, column) and (row, column + 1) of a tile of `type`; column is even.
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
  // The same for a tile of bytes: element (row, column) is in the low byte.
  __device__ static __forceinline__ unsigned Bytes(unsigned tile, int row, int column) {
    return ptx::LoadShared16(tile + At(row, column));
  }
};

}  // namespace sm80
