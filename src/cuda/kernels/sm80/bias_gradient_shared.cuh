// Shared memory of sm80/bias_gradient.cu, for the host, which requests it, and the kernel.
#pragma once
#include "shared/operand.cuh"

namespace attn::device {

// Offsets in bytes.
struct BiasGradientShared {
  int q = 0;     // [stages][tile_q][dim_qk]; after the loop the sums overlay all tiles
  int dout = 0;  // [stages][tile_q][dim_vo]
  int k = 0;     // [stages][tile_kv][dim_qk]
  int v = 0;     // [stages][tile_kv][dim_vo]
  int bias = 0;  // [tile_q][tile_kv]; a warp's rows are its own
  int mask = 0;  // likewise, bytes
  int bytes = 0;
};

constexpr BiasGradientShared BiasGradientSharedOf(int tile_q, int tile_kv, int stages, int dim_qk,
                                                  int dim_vo, int bias_bytes, bool mask,
                                                  int operand_bytes = kOperandBytes) {
  BiasGradientShared s;
  s.dout = s.q + stages * tile_q * dim_qk * operand_bytes;
  s.k = s.dout + stages * tile_q * dim_vo * operand_bytes;
  s.v = s.k + stages * tile_kv * dim_qk * operand_bytes;
  s.bias = s.v + stages * tile_kv * dim_vo * operand_bytes;
  s.mask = s.bias + tile_q * tile_kv * bias_bytes;
  s.bytes = s.mask + (mask ? tile_q * tile_kv : 0);
  return s;
}

}  // namespace attn::device
