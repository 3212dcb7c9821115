// Parameters of sm90/backward.cu, backward_head.cu and backward_wide.cu: filled by the host, read
// by device code. Plain types only.
#pragma once
#include "shared/arguments.cuh"
#include "sm90/tensor_map.cuh"

namespace attn::device::sm90 {

struct BackwardParams {
  // Tensor maps of rank 4, (column, row, head, batch). Boxes: 64 columns in 128-byte swizzle, and
  // tile_q rows of q and dout, tile_kv rows of k and v (64 in backward_head.cu).
  TensorMap q, k, v, dout;
  Arguments common;
  // The same rank. Boxes: 64 queries, and 128 bytes of keys.
  TensorMap bias, mask;
  TensorMap dbias;  // with kDbiasStored
  TensorMap o;      // for sm90/backward_head.cu, unless delta is given; boxes as for q
  // persistent: the number of tiles of keys, and a counter of the items that blocks have taken
  // after their first. The counter is zeroed before the launch.
  unsigned num_items = 0;
  unsigned* num_taken = nullptr;
  unsigned kv_heads_reversed = 0;  // the last key heads, see BlockPlace in backward_keys.cuh
};

}  // namespace attn::device::sm90
