// Parameters of sm90/forward.cu: filled by the host, read by device code. Plain types only.
#pragma once
#include "shared/arguments.cuh"
#include "sm90/tensor_map.cuh"

namespace attn::device::sm90 {

// f32 [batch, heads_kv] factors of f8 values. A null `data`: all factors are 1.
struct Descales {
  const float* data = nullptr;
  long long stride_batch = 0;  // in elements
  long long stride_head = 0;
};

struct ForwardParams {
  // Rank 4, (column, row, head, batch); packed tensors have one batch entry. Boxes: 128 bytes of
  // columns in 128-byte swizzle (f8 of dim 64: 64 bytes), and 64 rows of q (a head's, if fewer),
  // tile_kv of k and v, 16 of o.
  TensorMap q, k, v, o;
  // Rank 4, (key, query, head, batch); a broadcast dimension has size 1. Boxes: 64 queries and 128
  // bytes of keys in 128-byte swizzle; 64 bytes in 64-byte swizzle if tile_kv keys take no more.
  TensorMap bias, mask;
  Arguments common;

  int q_tiles = 0;    // per head, for the longest sequence
  int num_tiles = 0;  // q_tiles * heads_q / tile_heads * batch
  // Dynamic schedule: query heads whose K and V share L2, divided by tile_heads.
  int heads_at_once = 1;
  // Dynamic schedule: 0 before the launch and after it. Null if every tile has a block of its own.
  unsigned* next_tile = nullptr;
  Descales descale_q, descale_k, descale_v;
  // Softcap: like Arguments::cap_series and cap_reach, with fewer terms, for smaller products.
  float cap_short[3] = {};
  float cap_short_reach = -1.0f;
};

}  // namespace attn::device::sm90
