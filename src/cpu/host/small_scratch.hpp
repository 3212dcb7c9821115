// Scratch memory of the kernels of small problems, kernels/small_forward.cpp and
// small_backward.cpp.
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

}  // namespace attn::cpu
