// Calls that the decode kernel computes whichever family is asked first.
#pragma once

#include <attn/problem.hpp>
#include <cstdint>

namespace attn::cuda {

// 16 queries are far fewer than a forward's tile has rows, and too few tiles to fill the device:
// the decode kernel splits their keys over blocks. With dropout the forward needs a quarter of its
// random numbers, so the decode kernel has dropout only for what the forward can't read.
inline constexpr std::int64_t kFewQueries = 16;
inline bool has_few_queries(const Problem& p) {
  return p.len_q <= kFewQueries && !p.dropout;
}

// Pages and rows that are appended: the decode kernel computes them, in f32 sm80/forward_cache.cu.
inline bool has_cache(const Problem& p) {
  return p.page_size > 0 || p.len_new > 0;
}

// K and V in an 8-bit type, q in a 16-bit one.
inline bool has_quantized_cache(const Problem& p) {
  const auto is_half = [](DType dtype) { return dtype == DType::f16 || dtype == DType::bf16; };
  const DType kv = p.kv_type();
  return is_half(p.dtype) && (kv == DType::f8e4m3 || kv == DType::f8e5m2 || kv == DType::i8);
}

}  // namespace attn::cuda
