// Parameters of sm90/backward.cu, backward_head.cu and backward_wide.cu: filled by the host, read
// by device code. Plain types only.
#pragma once
#include "shared/arguments.cuh"
#include "sm90/tensor_map.cuh"

namespace attn::device::sm90 {

struct BackwardParams {
  // Rank 4, (column, row, head, batch). Boxes: 64 columns in 128-byte swizzle, and tile_q rows of q
  // and dout, tile_kv of k and v (backward_head.cu: 64).
  TensorMap q, k, v, dout;
  Arguments common;
  // Likewise: 64 queries, and 128 bytes of keys.
  TensorMap bias, mask;
  TensorMap dbias;  // with kDbiasStored
  TensorMap o;      // of sm90/backward_head.cu, unless delta is given; as q
  // persistent: tiles of keys, and how many blocks have taken after their first; zeroed before.
  unsigned num_items = 0;
  unsigned* num_taken = nullptr;
};

}  // namespace attn::device::sm90
