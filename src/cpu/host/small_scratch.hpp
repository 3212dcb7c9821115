// Scratch memory of the kernels of small problems, kernels/small_forward.cpp, small_backward.cpp
// and tile_ops/amx_small.cpp.
#pragma once

#include <algorithm>
#include <attn/problem.hpp>
#include <cstdint>

#include "core/plan.hpp"
#include "cpu/host/config.hpp"

namespace attn::cpu {

// The most queries and keys of a sequence.
inline constexpr std::int64_t kMostSmallLen = 128;

// Rows of f32 that the kernels multiply in place have a multiple of this many elements: full
// vectors, whatever the instruction set. Others are copied, with zeros up to a multiple.
inline constexpr std::int64_t kSmallDimStep = 16;
inline std::int64_t small_dim(std::int64_t dim) {
  return round_up(dim, kSmallDimStep);
}

// Memory of one worker. `queries` is padded to full vectors, dims to kSmallDimStep.
struct SmallScratch {
  float* q_t = nullptr;      // Q^T, [dim_qk x queries]
  float* s = nullptr;        // S^T, then P^T, [keys x queries]
  float* lse = nullptr;      // [queries]
  float* inverse = nullptr;  // [queries] forward: 1 / row sum
  float* largest = nullptr;  // [queries] forward: the largest product
  // Copies of rows. q and dout: also for heads with queries that see no key.
  float* q = nullptr;
  float* k = nullptr;
  float* v = nullptr;
  float* o = nullptr;  // o; in the backward o, then dq
  // Backward.
  float* dout_t = nullptr;  // [dim_vo x queries]
  float* dp = nullptr;      // dP^T, then score gradients, [keys x queries]
  float* delta = nullptr;   // [queries]
  float* dout = nullptr;
  float* dk = nullptr;
  float* dv = nullptr;
};
inline SmallScratch make_small_scratch(Arena& arena, Pass pass, const Problem& p) {
  const std::int64_t queries = padded<float>(p.len_q);
  const std::int64_t dim_qk = small_dim(p.dim_qk);
  const std::int64_t dim_vo = small_dim(p.dim_vo);
  SmallScratch x;
  x.q_t = arena.take<float>(dim_qk * queries);
  x.s = arena.take<float>(p.len_kv * queries);
  x.lse = arena.take<float>(queries);
  x.q = arena.take<float>(queries * dim_qk);
  x.k = arena.take<float>(p.len_kv * dim_qk);
  x.v = arena.take<float>(p.len_kv * dim_vo);
  x.o = arena.take<float>(queries * std::max(dim_qk, dim_vo));
  if (pass != Pass::backward) {
    x.inverse = arena.take<float>(queries);
    x.largest = arena.take<float>(queries);
    return x;
  }
  x.dout_t = arena.take<float>(dim_vo * queries);
  x.dp = arena.take<float>(p.len_kv * queries);
  x.delta = arena.take<float>(queries);
  x.dout = arena.take<float>(queries * dim_vo);
  x.dk = arena.take<float>(p.len_kv * dim_qk);
  x.dv = arena.take<float>(p.len_kv * dim_vo);
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
