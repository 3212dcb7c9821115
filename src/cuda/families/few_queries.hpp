// Calls that the decode kernel runs on every device, also where sm90 is preferred. f8 q with few
// queries stays on sm90 (sm90/forward_plan.cpp).
#pragma once

#include <attn/problem.hpp>
#include <cstdint>

#include "core/signature.hpp"

namespace attn::cuda {

// Up to 16 queries leave most rows of a forward's tile empty, and give too few tiles to fill the
// device. The decode kernel splits their keys over blocks. Not with dropout: the forward uses every
// Philox call completely and needs a quarter as many, so the decode kernel has dropout only for
// caches that the forward can't read.
inline constexpr std::int64_t kFewQueries = 16;
inline bool has_few_queries(const Problem& p) {
  return p.len_q <= kFewQueries && !p.dropout;
}

// Paged caches and appended rows: the decode kernel runs them; in f32 and above dim 256,
// sm80/forward_cache.cu.
inline bool has_cache(const Problem& p) {
  return p.page_size > 0 || p.len_new > 0;
}

// Whether K and V have an 8-bit type and q a 16-bit one.
inline bool has_quantized_cache(const Problem& p) {
  return core::is_half(p.dtype) && core::is_8_bit(p.kv_type());
}

}  // namespace attn::cuda
