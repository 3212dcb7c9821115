// Shared memory of sm80/forward.cu, for the host, which requests it, and the kernel.
#pragma once
#include "shared/operand.cuh"

namespace attn::device {

// Offsets in bytes; tiles begin at multiples of 128.
struct ForwardShared {
  int q = 0;       // [tile_q][dim_qk]; after the loop O overlays all tiles
  int k = 0;       // [stages][tile_kv][dim_qk]
  int v = 0;       // [stages][tile_kv][dim_vo]
  int bias = 0;    // [tile_q][tile_kv], of the bias's type; a warp uses only its own rows
  int mask = 0;    // [tile_q][tile_kv] bytes, likewise
  int ranges = 0;  // [tile_q] KeyRange; before that the scratch of ReduceBlock()
  int bytes = 0;
};

constexpr ForwardShared ForwardSharedOf(int tile_q, int tile_kv, int stages, int dim_qk, int dim_vo,
                                        int bias_bytes, bool mask,
                                        int operand_bytes = kOperandBytes) {
  ForwardShared s;
  s.k = s.q + tile_q * dim_qk * operand_bytes;
  s.v = s.k + stages * tile_kv * dim_qk * operand_bytes;
  s.bias = s.v + stages * tile_kv * dim_vo * operand_bytes;
  s.mask = s.bias + tile_q * tile_kv * bias_bytes;
  s.ranges = s.mask + (mask ? tile_q * tile_kv : 0);
  s.bytes = s.ranges + tile_q * 8;
  const int o = tile_q * dim_vo * 4;  // at most f32
  if (s.bytes < o) s.bytes = o;
  return s;
}

}  // namespace attn::device
