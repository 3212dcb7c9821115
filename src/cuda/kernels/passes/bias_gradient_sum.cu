// Last step of dbias if bias_gradient.cu computed it in splits: adds the splits of a.partials in
// order and writes the gradient in its own type and strides. Grid: one thread per element of
// dbias's own shape.
#include "config.cuh"
#include "passes/bias_gradient_sum.cuh"
#include "ptx/grid.cuh"
#include "shared/gradient.cuh"

extern "C" __global__ void __launch_bounds__(attn::device::bias_gradient_sum::kThreads)
    attn_bias_gradient_sum(const __grid_constant__ attn::device::Arguments a) {
  ptx::WaitForPrimary();
  const long long batch = a.dbias_entries;
  const long long heads = (a.dbias_full & 4) != 0 ? a.heads_q : 1;
  const long long len_q = (a.dbias_full & 2) != 0 ? a.max_len_q : 1;
  const long long len_kv = (a.dbias_full & 1) != 0 ? a.max_len_kv : 1;
  const long long count = batch * heads * len_q * len_kv;
  const long long at = 1ll * attn::device::bias_gradient_sum::kThreads * blockIdx.x + threadIdx.x;
  if (at >= count) return;
  float sum = 0.0f;
  for (int split = 0; split < a.splits; ++split) sum += a.partials[split * count + at];
  const long long j = at % len_kv;
  const long long i = at / len_kv % len_q;
  const int h = static_cast<int>(at / len_kv / len_q % heads);
  const int b = static_cast<int>(at / len_kv / len_q / heads);
  shared::StoreGradient(a, shared::ScoreAddress(a.dbias, b, h, i, j), a.dbias.type, sum);
}
