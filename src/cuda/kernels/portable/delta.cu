// delta_i = dot(dout_i, o_i) - dlse_i, the row statistic of the backward; f32.
// Grid: (rows of one batch entry and head / kRowsPerBlock, heads_q, batch); a warp computes a row.
// Config: dtype_out, the type of dout and o; dim; has_dlse.
#include "config.cuh"
#include "shared/element.cuh"

constexpr int kRowsPerBlock = 4;

struct Rows {
  const void* data;
  long long stride_batch, stride_row, stride_head;  // elements
};

struct DeltaArguments {
  Rows o, dout;
  const float* dlse;  // [batch, heads_q, len_q] by the strides of delta
  float* delta;
  long long stride_batch, stride_head;
  int len_q;
};

extern "C" __global__ void __launch_bounds__(32 * kRowsPerBlock)
    attn_delta(const __grid_constant__ DeltaArguments a) {
  using Element = shared::Element<config::dtype_out>;
  const int row = static_cast<int>(blockIdx.x) * kRowsPerBlock + static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (row >= a.len_q) return;
  const long long head = blockIdx.y;
  const long long batch = blockIdx.z;
  const auto* o = static_cast<const Element*>(a.o.data) + batch * a.o.stride_batch +
                  row * a.o.stride_row + head * a.o.stride_head;
  const auto* dout = static_cast<const Element*>(a.dout.data) + batch * a.dout.stride_batch +
                     row * a.dout.stride_row + head * a.dout.stride_head;
  float sum = 0.0f;
  for (int i = lane; i < config::dim; i += 32) {
    sum += shared::ToFloat(o[i]) * shared::ToFloat(dout[i]);
  }
  for (int distance = 16; distance > 0; distance /= 2) {
    sum += __shfl_xor_sync(0xffffffffu, sum, distance);
  }
  if (lane != 0) return;
  const long long at = batch * a.stride_batch + head * a.stride_head + row;
  if constexpr (config::has_dlse != 0) sum -= a.dlse[at];
  a.delta[at] = sum;
}
