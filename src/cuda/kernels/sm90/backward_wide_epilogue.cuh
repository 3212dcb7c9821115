// Epilogue of sm90/backward_wide.cu: a consumer warpgroup writes its gradient. The accumulators
// hold the dims of a key in different lanes, so they pass through shared memory, which no role
// reads any more.
#pragma once
#include "shared/gradient.cuh"
#include "sm90/backward_wide_consumer.cuh"

namespace sm90 {

template <int kOwnDim>
struct WideEpilogue {
  using Consumer = WideConsumer<kOwnDim>;
  // f32 elements per row, padded so that lanes that store together use different banks.
  static constexpr int kPitch = kOwnDim + 4;
  static constexpr int kBytes = config::store_elements != 0
                                    ? kTileKv * kPitch * 4
                                    : kTileKv * kOwnDim * kOperandBytes;  // of a warpgroup
  static_assert(2 * kBytes <= kShared.barriers);

  const Consumer& c;
  int warpgroup;

  // Both warpgroups must call it. A null `base` means that the gradient is not computed.
  __device__ __forceinline__ void Run(const shared::StridedTensor& tensor, float factor,
                                      int dim) const {
    ptx::NamedBarrierArrive(kBarrierOfConsumers + 1 - warpgroup, 256);
    ptx::NamedBarrierWait(kBarrierOfConsumers + warpgroup, 256);
    if (tensor.base == nullptr) return;
    if constexpr (config::store_elements != 0) {
      WriteElements(tensor, factor, dim);
    } else {
      WriteRows(tensor, factor, dim);
    }
  }

 private:
  __device__ __forceinline__ unsigned Memory() const {
    return c.base + static_cast<unsigned>(warpgroup * kBytes);
  }
  __device__ __forceinline__ void Sync() const {
    ptx::NamedBarrierWait(kBarrierOfWarpgroup + warpgroup, 128);
  }
  __device__ __forceinline__ char* RowOf(const shared::StridedTensor& tensor, int key) const {
    const Sequence& seq = c.keys.seq;
    return shared::RowAddress(tensor, seq.idx, seq.first_kv + c.keys.j0 + key, c.keys.head_kv);
  }

  __device__ __forceinline__ void WriteRows(const shared::StridedTensor& tensor, float factor,
                                            int dim) const {
    const unsigned to = Consumer::PairsAt(Memory());
#pragma unroll
    for (int m = 0; m < Consumer::kBlocks; ++m)
#pragma unroll
      for (int i = 0; i < kTileKv / 16; ++i) {
        unsigned pairs[4];
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          pairs[n] = ptx::Pack<kDtype>(c.sums[m][8 * i + 2 * n] * factor,
                                       c.sums[m][8 * i + 2 * n + 1] * factor);
        }
        Consumer::StorePairs(to + m * kTileKv * 128, i, pairs);
      }
    Sync();
    constexpr int kChunks = kOwnDim / 8;  // of 16 bytes, in a row
    const int num_keys = min(kTileKv, c.keys.seq.rows_kv - c.keys.j0);
#pragma unroll 4
    for (int n = ptx::RereadThreadIdx() % 128; n < num_keys * kChunks; n += 128) {
      const int key = n / kChunks;
      const int chunk = n % kChunks;
      const int column = Rank() * kOwnDim + 8 * chunk;
      if (column >= dim) continue;
      const uint4 words = ptx::LoadShared128(
          Memory() + static_cast<unsigned>(chunk / 8 * kTileKv * 128 + key * 128 +
                                           (chunk % 8 ^ key % 8) * 16));
      *reinterpret_cast<uint4*>(RowOf(tensor, key) + kOperandBytes * column) = words;
    }
  }

  // For other types, gradients that accumulate, and non-finite results that are replaced.
  __device__ __forceinline__ void WriteElements(const shared::StridedTensor& tensor, float factor,
                                                int dim) const {
    const int key0 = 2 * (Consumer::Lane() % 4);
    const int row0 = 16 * Consumer::Warp() + Consumer::Lane() / 4;
    const unsigned to = Memory() + static_cast<unsigned>(4 * (key0 * kPitch + row0));
#pragma unroll
    for (int m = 0; m < Consumer::kBlocks; ++m)
#pragma unroll
      for (int i = 0; i < kTileKv / 8; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          ptx::StoreShared32(to + 4 * ((8 * i + e % 2) * kPitch + 64 * m + 8 * (e / 2)),
                             c.sums[m][4 * i + e] * factor);
        }
    Sync();
    const int num_keys = min(kTileKv, c.keys.seq.rows_kv - c.keys.j0);
#pragma unroll 1
    for (int n = ptx::RereadThreadIdx() % 128; n < num_keys * kOwnDim; n += 128) {
      const int key = n / kOwnDim;
      const int column = Rank() * kOwnDim + n % kOwnDim;
      if (column >= dim) continue;
      const unsigned word =
          ptx::LoadShared32(Memory() + static_cast<unsigned>(4 * (key * kPitch + n % kOwnDim)));
      shared::StoreGradient(c.p.common,
                            RowOf(tensor, key) + column * shared::ElementBytes(tensor.type),
                            tensor.type, __uint_as_float(word));
    }
  }
};

}  // namespace sm90
