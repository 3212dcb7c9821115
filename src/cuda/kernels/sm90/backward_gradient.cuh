// Writes rows of a gradient from a warp's accumulators to global memory, for sm90/backward.cu and
// sm90/backward_head.cu.
#pragma once
#include "ptx/math.cuh"
#include "shared/gradient.cuh"
#include "shared/quad_transpose.cuh"
#include "sm90/backward_config.cuh"

namespace sm90 {

// The rows of one head and sequence in a tensor.
struct GradientRows {
  const shared::Arguments& a;
  const shared::StridedTensor& tensor;
  int seq_idx;
  int head;
  long long first_row;  // of the sequence
  int num_rows;
  float factor;
  int dim;

  // Writes rows `row` and row + 8 of a lane's accumulators; a warp has 16 rows x 2 kSums columns,
  // from column `first` on. `row` is the warp's first row + lane / 4. The four lanes of a row
  // exchange their parts, so that each stores 8 of every 32 columns.
  template <int kSums>
  __device__ __forceinline__ void Write(int row, const float (&sums)[kSums], int first = 0) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int i = row + 8 * h;
      char* const to = shared::RowAddress(tensor, seq_idx, first_row + i, head);
      if constexpr (config::store_elements != 0) {
        if (i < num_rows) WriteElements(to, sums, h, first);
        continue;
      }
#pragma unroll
      for (int g = 0; g < kSums / 16; ++g) {
        unsigned words[4];
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          const int e = 4 * (4 * g + n) + 2 * h;
          words[n] = ptx::Pack<kDtype>(sums[e] * factor, sums[e + 1] * factor);
        }
        shared::Transpose(words);
        const int column = first + 32 * g + 8 * (lane % 4);
        if (i >= num_rows || column >= dim) continue;
        *reinterpret_cast<uint4*>(to + column * kOperandBytes) = {words[0], words[1], words[2],
                                                                  words[3]};
      }
    }
  }

 private:
  // For other types, gradients that accumulate, and non-finite results that are replaced.
  template <int kSums>
  __device__ __forceinline__ void WriteElements(char* to, const float (&sums)[kSums], int h,
                                                int first) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int n = 0; n < kSums / 4; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int column = first + 8 * n + 2 * (lane % 4) + e;
        if (column >= dim) continue;
        shared::StoreGradient(a, to + column * shared::ElementBytes(tensor.type), tensor.type,
                              sums[4 * n + 2 * h + e] * factor);
      }
  }
};

}  // namespace sm90
