// Scratch memory of the kernels of small problems, kernels/small_forward.cpp, small_backward.cpp
// and tile_ops/amx_small.cpp.
#pragma once

#include <attn/problem.hpp>
#include <cstdint>

#include "core/plan.hpp"
#include "cpu/host/config.hpp"

namespace attn::cpu {

// The most queries and keys of a sequence.
inline constexpr std::int64_t kMostSmallLen = 128;

// Memory of one worker. `queries` is padded to full vectors.
struct SmallScratch {
  float* q_t = nullptr;      // Q^T, [dim_qk x queries], padded
  float* s = nullptr;        // S^T, then P^T, [keys x queries]
  float* lse = nullptr;      // [queries]
  float* inverse = nullptr;  // [queries] forward: 1 / row sum
  // Backward.
  float* dout_t = nullptr;  // [dim_vo x queries]
  float* dp = nullptr;      // dP^T, then score gradients, [keys x queries]
  float* delta = nullptr;   // [queries]
  float* q = nullptr;       // copies for heads with queries that see no key, [queries x dim]
  float* dout = nullptr;
};
inline SmallScratch make_small_scratch(Arena& arena, Pass pass, const Problem& p) {
  const std::int64_t queries = padded<float>(p.len_q);
  SmallScratch x;
  x.q_t = arena.take<float>(p.dim_qk * queries);
  x.s = arena.take<float>(p.len_kv * queries);
  x.lse = arena.take<float>(queries);
  if (pass != Pass::backward) {
    x.inverse = arena.take<float>(queries);
    return x;
  }
  x.dout_t = arena.take<float>(p.dim_vo * queries);
  x.dp = arena.take<float>(p.len_kv * queries);
  x.delta = arena.take<float>(queries);
  x.q = arena.take<float>(queries * p.dim_qk);
  x.dout = arena.take<float>(queries * p.dim_vo);
  return x;
}

// Memory of one worker of tile_ops/amx_small.cpp. Keys are padded to multiples of 32, dims too.
struct SmallBf16Scratch {
  std::int64_t ld = 0;           // elements of a row of s and of p: the padded keys
  std::int64_t ld_o = 0;         // of a row of o
  std::uint32_t* k_t = nullptr;  // K^T, packed
  std::uint32_t* v = nullptr;    // V, packed
  Bf16Bits* p = nullptr;         // [16 x keys]
  float* s[2] = {};              // [16 x keys]
  float* o[2] = {};              // [16 x dim_vo]
  char* copy = nullptr;          // of rows at the edge of q and k, [16 x 64 bytes]
};
inline SmallBf16Scratch make_small_bf16_scratch(Arena& arena, const Problem& p) {
  SmallBf16Scratch x;
  x.ld = round_up(p.len_kv, kPackedDepth);
  x.ld_o = round_up(p.dim_vo, kPackedDepth);
  x.k_t = arena.take<std::uint32_t>(x.ld * round_up(p.dim_qk, kPackedDepth) / 2);
  x.v = arena.take<std::uint32_t>(x.ld * x.ld_o / 2);
  x.p = arena.take<Bf16Bits>(kBf16Rows * x.ld);
  for (float*& s : x.s) s = arena.take<float>(kBf16Rows * x.ld);
  for (float*& o : x.o) o = arena.take<float>(kBf16Rows * x.ld_o);
  x.copy = arena.take<char>(kBf16Rows * 64);
  return x;
}

}  // namespace attn::cpu
