// sm90/bias_gradient.cu: writes the sums of a warpgroup, 64 queries x 128 keys, to dbias or to the
// partial sums of the block's split.
#pragma once
#include "ptx/math.cuh"
#include "ptx/tma.cuh"
#include "ptx/warpgroup.cuh"
#include "sm90/bias_gradient_consumer.cuh"

namespace sm90::bias_gradient {

struct Output {
  const Consumer& sums;

  __device__ __forceinline__ void Write() const {
    // Both warpgroups have read the tiles; the sums overlay them.
    ptx::NamedBarrierWait(kConsumersBarrier, 128 * kWarpgroups);
    Stage();
    if constexpr (kPartials) {
      __syncwarp();
      WritePartials();
      return;
    }
    ptx::FenceAsyncProxy();
    ptx::NamedBarrierWait(WarpgroupBarrier(sums.warpgroup), 128);
    if (threadIdx.x % 128 == 0) Store();
  }

 private:
  using Layout = ScoreTile<kDbiasBytes, kTile>;

  __device__ __forceinline__ unsigned Staged() const {
    return sums.base + static_cast<unsigned>(sums.warpgroup * Layout::kBytes);
  }

  // Stores the sums to shared memory, in the type of dbias.
  __device__ __forceinline__ void Stage() const {
    const int lane = Consumer::Lane();
    if constexpr (kDbiasBytes == 2) {
      // Four 8 x 8 matrices, (keys 0-7, 8-15) x (queries 0-7, 8-15).
      const unsigned first =
          Staged() + Layout::At(16 * Consumer::Warp() + lane % 16, lane / 16 * 8);
#pragma unroll
      for (int k = 0; k < kTile / 16; ++k) {
        unsigned pairs[4];
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          const float* pair = sums.sums + 8 * k + 2 * n;
          pairs[n] = ptx::Pack<config::dbias_type>(pair[0], pair[1]);
        }
        ptx::StoreMatrix(Layout::Next(first, 2 * k, 0), pairs[0], pairs[1], pairs[2], pairs[3]);
      }
    } else {
      const unsigned first =
          Staged() + Layout::At(16 * Consumer::Warp() + lane / 4, Consumer::Column());
#pragma unroll
      for (int n = 0; n < kTile / 4; ++n) {
        const float* pair = sums.sums + 2 * n;
        ptx::StoreShared64(Layout::Next(first, n / 2, n % 2), pair[0], pair[1]);
      }
    }
  }

  // TMA does not write elements past the tensor's end.
  __device__ __forceinline__ void Store() const {
    const BlockTile& tile = sums.tile;
#pragma unroll
    for (int c = 0; c < Layout::kBoxes; ++c) {
      ptx::TmaStore(&sums.p.dbias, Staged() + static_cast<unsigned>(c * Layout::kBoxBytes),
                    tile.j0 + c * (Layout::kRowBytes / kDbiasBytes), tile.i0 + 64 * sums.warpgroup,
                    tile.head, tile.entry);
    }
    ptx::TmaStoreCommit();
    ptx::TmaStoreWait();
  }

  // Writes the warp's 16 rows. partials: [split][entry][head][query][key] of dbias's own shape.
  __device__ __forceinline__ void WritePartials() const {
    const Arguments& a = sums.p.common;
    const BlockTile& tile = sums.tile;
    const int num_heads = tile.num_heads == 1 ? a.heads_q : 1;
    const long long plane =
        (1ll * tile.split * a.dbias_entries + tile.entry) * num_heads + tile.head;
    const int first = 64 * sums.warpgroup + 16 * Consumer::Warp();
    const int rows = min(16, a.max_len_q - tile.i0 - first);
    const int columns = min(kTile, a.max_len_kv - tile.j0);
    float* const to = a.partials + (plane * a.max_len_q + tile.i0 + first) * a.max_len_kv + tile.j0;
#pragma unroll 1
    for (int row = 0; row < rows; ++row) {
#pragma unroll
      for (int column = Consumer::Lane(); column < kTile; column += 32) {
        if (column >= columns) break;
        to[1ll * row * a.max_len_kv + column] = __uint_as_float(
            ptx::LoadShared32(Staged() + Layout::At(16 * Consumer::Warp() + row, column)));
      }
    }
  }
};

}  // namespace sm90::bias_gradient
