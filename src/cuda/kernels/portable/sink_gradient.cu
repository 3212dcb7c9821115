// dsink_h = -sum over all rows of exp(sink_h - lse) * delta, of the stats that prepare.cu left. A
// row that sees no key and has lse = sink_h adds its dlse. Added up in a fixed order.
//
// Grid: a block for each query head. An entry's rows are shared by as many threads as its length
// needs, the other threads take further entries.
// Config: none.
#include "config.cuh"
#include "shared/output.cuh"

namespace {

using namespace shared;

constexpr int kThreads = 1024;
constexpr float kLog2E = 1.4426950408889634f;
constexpr float kInfinity = __builtin_bit_cast(float, 0x7f800000);

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads)
    attn_sink_gradient(const __grid_constant__ Arguments a) {
  __shared__ float sums[kThreads / 32];
  const int head = static_cast<int>(blockIdx.x);
  const int thread = static_cast<int>(threadIdx.x);
  const float sink = *reinterpret_cast<const float*>(reinterpret_cast<const char*>(a.sinks) +
                                                     head * a.sinks_stride);
  int threads = 32;  // of an entry
  while (threads < kThreads && threads < a.max_len_q) threads *= 2;
  float sum = 0.0f;
  if (sink != -kInfinity) {
    for (int b = thread / threads; b < a.batch; b += kThreads / threads) {
      const Entry entry = EntryOf(a, b);
      const char* stats = RowAddress(a.stats, b, entry.first_q, head);
#pragma unroll 4
      for (int i = thread % threads; i < entry.len_q; i += threads) {
        const float2 row = *reinterpret_cast<const float2*>(stats + i * a.stats.stride_row);
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
