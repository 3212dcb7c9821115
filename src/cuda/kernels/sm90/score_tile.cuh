// Tiles of bias or mask in shared memory, as TMA writes them.
#pragma once
#include "config.cuh"
#include "ptx/math.cuh"
#include "ptx/memory.cuh"
#include "shared/score_entries.cuh"

namespace sm90 {

// Coordinates of a head of a sequence in the tensor map of a bias or mask. Broadcast dimensions
// have size 1.
struct ScorePlace {
  int head;
  int entry;
};
__device__ __forceinline__ ScorePlace PlaceOf(const attn::device::ScoreTensor& tensor, int head,
                                              int entry) {
  return {tensor.stride_head == 0 ? 0 : head, tensor.stride_batch == 0 ? 0 : entry};
}
__device__ __forceinline__ ScorePlace BiasPlace(const attn::device::Arguments& a, int head,
                                                int seq_idx) {
  return PlaceOf(a.bias, head, shared::BiasEntry(a, seq_idx));
}
__device__ __forceinline__ ScorePlace MaskPlace(const attn::device::Arguments& a, int head,
                                                int seq_idx) {
  return PlaceOf(a.mask, head, shared::MaskEntry(a, seq_idx));
}

// Reads elements at the addresses of a layout.
template <class Layout>
struct ScoreReads {
  // Returns elements (row, column) and (row, column + 1); column is even. `type`: of a float tile.
  template <int type>
  __device__ static __forceinline__ float2 Floats(unsigned tile, int row, int column) {
    if constexpr (type == config::f32) {
      const uint2 pair = ptx::LoadShared64(tile + Layout::At(row, column));
      return {__uint_as_float(pair.x), __uint_as_float(pair.y)};
    } else {
      const unsigned pair = ptx::LoadShared32(tile + Layout::At(row, column));
      return {ptx::Low<type>(pair), ptx::High<type>(pair)};
    }
  }
  // The same for a tile of bytes: element (row, column) is in the low byte.
  __device__ static __forceinline__ unsigned Bytes(unsigned tile, int row, int column) {
    return ptx::LoadShared16(tile + Layout::At(row, column));
  }
};

// A tile [64 queries][keys]: boxes of 128 bytes (64 if the keys take no more) per query, with the
// swizzle of that width, so that the 8 rows of a fragment are read without bank conflicts.
template <int bytes, int keys>
struct ScoreTile : ScoreReads<ScoreTile<bytes, keys>> {
  static constexpr int kRowBytes = keys * bytes % 128 == 0 ? 128 : 64;
  static constexpr int kBoxes = keys * bytes / kRowBytes;
  static constexpr int kBoxBytes = 64 * kRowBytes;
  static constexpr int kBytes = kBoxes * kBoxBytes;
  static_assert(keys * bytes % kRowBytes == 0);

  __device__ static __forceinline__ unsigned At(int row, int column) {
    const int byte = column * bytes;
    const int chunk = byte % kRowBytes / 16 ^ (kRowBytes == 128 ? row & 7 : row >> 1 & 3);
    return static_cast<unsigned>(byte / kRowBytes * kBoxBytes + row * kRowBytes + (chunk << 4) +
                                 byte % 16);
  }

  // First(): address of elements (row, column) and (row, column + 1) of `tile`, for an even column
  // below 8. Next(): from it, the address 8 n columns and 8 h rows further, with one XOR.
  __device__ static __forceinline__ unsigned First(unsigned tile, unsigned row, unsigned column) {
    return tile + row * kRowBytes +
           ((kRowBytes == 128 ? row & 7 : row >> 1 & 3) << 4 ^ column * bytes);
  }
  __device__ static __forceinline__ unsigned Next(unsigned first, int n, int h) {
    const int byte = 8 * n * bytes;
    return (first ^ static_cast<unsigned>(byte % kRowBytes)) +
           static_cast<unsigned>(byte / kRowBytes * kBoxBytes + 8 * h * kRowBytes);
  }
};

// A row [keys] of a bias or mask that broadcasts queries.
template <int bytes>
struct ScoreRow : ScoreReads<ScoreRow<bytes>> {
  __device__ static __forceinline__ unsigned At(int /*row*/, int column) {
    return static_cast<unsigned>(column * bytes);
  }
};

template <int bytes, int keys, bool one_row>
struct ScoreLayoutOf {
  using Type = ScoreTile<bytes, keys>;
};
template <int bytes, int keys>
struct ScoreLayoutOf<bytes, keys, true> {
  using Type = ScoreRow<bytes>;
};

}  // namespace sm90
