// dsink_h = -sum over all rows of exp(sink_h - lse) * delta, with lse_delta from
// backward_preprocess.cu. A row that sees no key has lse = sink_h and contributes its dlse. The
// order of the sum is fixed.
//
// Grid: one block per query head. Up to kThreads threads, as many as a sequence has rows, share the
// rows of a sequence; the other threads process other sequences.
// Config: none.
#include "config.cuh"
#include "passes/sink_gradient.cuh"
#include "ptx/grid.cuh"
#include "shared/constants.cuh"
#include "shared/gradient.cuh"

namespace {

using namespace shared;

using attn::device::sink_gradient::kThreads;

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads)
    attn_sink_gradient(const __grid_constant__ Arguments a) {
  ptx::WaitForPrimary();
  __shared__ float sums[kThreads / 32];
  const int head = static_cast<int>(blockIdx.x);
  const int thread = static_cast<int>(threadIdx.x);
  const float sink = *reinterpret_cast<const float*>(reinterpret_cast<const char*>(a.sinks) +
                                                     head * a.sinks_stride);
  int threads = 32;  // per sequence
  while (threads < kThreads && threads < a.max_len_q) threads *= 2;
  float sum = 0.0f;
  if (sink != -kInfinity) {
    for (int b = thread / threads; b < a.batch; b += kThreads / threads) {
      const Sequence seq = SequenceOf(a, b);
      const char* lse_delta = RowAddress(a.lse_delta, b, seq.first_q, head);
#pragma unroll 4
      for (int i = thread % threads; i < seq.len_q; i += threads) {
        const float2 row = *reinterpret_cast<const float2*>(lse_delta + i * a.lse_delta.stride_row);
        sum = fmaf(-ptx::Exp2(fmaf(sink, kLog2E, -row.x)), row.y, sum);
      }
    }
  }
  for (int distance = 16; distance > 0; distance /= 2) {
    sum += __shfl_xor_sync(~0u, sum, distance);
  }
  if (thread % 32 == 0) sums[thread / 32] = sum;
  __syncthreads();
  if (thread != 0) return;
  sum = 0.0f;
  for (const float part : sums) sum += part;
  StoreGradient(a, reinterpret_cast<char*>(a.dsink) + head * a.dsink_stride, config::f32, sum);
}
