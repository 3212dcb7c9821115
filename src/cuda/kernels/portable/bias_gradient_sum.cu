// The last step of dbias: adds up the parts that bias_gradient.cu left in a.partials, in order, and
// writes the gradient in its own type and strides.
// Grid: a thread for each element of the bias's own shape.
#include "config.cuh"
#include "shared/output.cuh"

extern "C" __global__ void __launch_bounds__(256)
    attn_bias_gradient_sum(const __grid_constant__ attn::device::Arguments a) {
  const long long batch = (a.dbias_full & 8) != 0 ? a.batch : 1;
  const long long heads = (a.dbias_full & 4) != 0 ? a.heads_q : 1;
  const long long len_q = (a.dbias_full & 2) != 0 ? a.max_len_q : 1;
  const long long len_kv = (a.dbias_full & 1) != 0 ? a.max_len_kv : 1;
  const long long count = batch * heads * len_q * len_kv;
  const long long at = 256ll * blockIdx.x + threadIdx.x;
  if (at >= count) return;
  float sum = 0.0f;
  for (int part = 0; part < a.splits; ++part) sum += a.partials[part * count + at];
  const long long j = at % len_kv;
  const long long i = at / len_kv % len_q;
  const int h = static_cast<int>(at / len_kv / len_q % heads);
  const int b = static_cast<int>(at / len_kv / len_q / heads);
  shared::StoreGradient(a, shared::PairAddress(a.dbias, b, h, i, j), a.dbias.type, sum);
}
