// The constants of every kernel of the family sm80 that computes scores.
#pragma once

#include <attn/problem.hpp>

#include "cuda/families/shared_entries.hpp"
#include "cuda/families/sm80/heuristics.hpp"
#include "cuda/host/config.hpp"

namespace attn::cuda::sm80 {

inline void set_problem(Config& config, const Problem& p, const Shape& shape, bool element_access) {
  config.set("dtype", static_cast<int>(p.dtype))
      .set("precision", static_cast<int>(p.dtype == DType::f32 ? p.precision : Precision::tf32x3))
      .set("dim_qk", shape.dim_qk)
      .set("dim_vo", shape.dim_vo)
      .set("softcap", shape.softcap)
      .set("alibi", shape.alibi)
      .set("bias_type", p.bias.given ? static_cast<int>(p.bias_type()) : 0)
      .set("mask", shape.mask)
      .set("shared_entries", has_shared_entries(p))
      .set("dropout", shape.dropout)
      .set("element_access", element_access);
}

}  // namespace attn::cuda::sm80
