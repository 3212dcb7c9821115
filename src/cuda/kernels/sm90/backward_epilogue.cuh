// The end of sm90/backward.cu: dK and dV of a consumer warpgroup's keys, from registers.
#pragma once
#include "shared/gradient.cuh"
#include "shared/quad_transpose.cuh"
#include "sm90/backward_consumer.cuh"

namespace sm90 {

struct BackwardEpilogue {
  const Consumer& c;

  __device__ __forceinline__ void Run() const {
    const Arguments& a = c.p.common;
    if (a.dv.base != nullptr) Write(a.dv, c.dv, DvFactor(a), a.dim_vo);
    if (a.dk.base != nullptr) Write(a.dk, c.dk, a.scale, a.dim_qk);
  }

 private:
  // What dV lacks: dropout's factor, and the scale that P had.
  __device__ __forceinline__ static float DvFactor(const Arguments& a) {
    if constexpr (kSignedP) return a.keep_scale / kPScale;
    if constexpr (kDropout) return a.keep_scale * (shared::kKeptScale<kDtype> / kPScale);
    return 1 / kPScale;
  }

  // Four lanes exchange their parts of a row: each stores 8 columns of every 32.
  __device__ __forceinline__ void Write(const shared::StridedTensor& tensor,
                                        const KeyGradient& sums, float factor, int dim) const {
    const Sequence& seq = c.keys.seq;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int j = c.keys.j0 + 64 * c.warpgroup + 16 * c.warp + c.lane / 4 + 8 * h;
      char* const row = shared::RowAddress(tensor, seq.idx, seq.first_kv + j, c.keys.head_kv);
      if constexpr (config::store_elements != 0) {
        if (j < seq.rows_kv) WriteElements(row, tensor.type, sums, h, factor, dim);
        continue;
      }
#pragma unroll
      for (int g = 0; g < kDim / 32; ++g) {
        unsigned words[4];
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          const int e = 4 * (4 * g + n) + 2 * h;
          words[n] = ptx::Pack<kDtype>(sums[e] * factor, sums[e + 1] * factor);
        }
        shared::Transpose(words);
        const int column = 32 * g + 8 * (c.lane % 4);
        if (j >= seq.rows_kv || column >= dim) continue;
        *reinterpret_cast<uint4*>(row + column * kOperandBytes) = {words[0], words[1], words[2],
                                                                   words[3]};
      }
    }
  }

  // Other types, gradients that accumulate, non-finite results replaced.
  __device__ __forceinline__ void WriteElements(char* row, int type, const KeyGradient& sums, int h,
                                                float factor, int dim) const {
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int column = 8 * n + 2 * (c.lane % 4) + e;
        if (column >= dim) continue;
        shared::StoreGradient(c.p.common, row + column * shared::ElementBytes(type), type,
                              sums[4 * n + 2 * h + e] * factor);
      }
  }
};

}  // namespace sm90
