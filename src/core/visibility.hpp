// Who sees whom (docs/semantics.md, "Diagonal" and "Visible"): pure functions on entry-local
// indices.
#pragma once

#include <algorithm>
#include <attn/arguments.hpp>
#include <attn/problem.hpp>
#include <cstdint>
#include <limits>

namespace attn::core {

// Query i of a batch entry stands at key i + diag.
inline std::int64_t diagonal_of(Diagonal diagonal, std::int64_t explicit_value, std::int64_t len_q,
                                std::int64_t len_kv) {
  switch (diagonal) {
    case Diagonal::bottom_right: return len_kv - len_q;
    case Diagonal::top_left: return 0;
    case Diagonal::explicit_value: break;
  }
  return explicit_value;
}

// Diagonal::explicit_value: what the call gives, else where its origin places it.
inline std::int64_t explicit_diagonal(const Arguments& arguments) {
  return arguments.diag ? *arguments.diag : arguments.origin.q - arguments.origin.kv;
}

inline std::int64_t saturating_add(std::int64_t a, std::int64_t b) {
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();
  if (b > 0 && a > kMax - b) return kMax;
  if (b < 0 && a < kMin - b) return kMin;
  return a + b;
}

// Keys [begin, end); empty when begin >= end.
struct KeyRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  [[nodiscard]] bool empty() const { return begin >= end; }
};

// The keys of [0, len_kv) that causal and window leave to query i. Kv ranges, mask and bias come on
// top.
inline KeyRange band_of(const Problem& problem, std::int64_t i, std::int64_t diag,
                        std::int64_t len_kv) {
  const std::int64_t at = saturating_add(i, diag);
  KeyRange range{0, len_kv};
  if (problem.causal) range.end = std::min(range.end, saturating_add(at, 1));
  if (problem.window_left) {
    range.begin = std::max(range.begin, saturating_add(at, -*problem.window_left));
  }
  if (problem.window_right) {
    range.end = std::min(range.end, saturating_add(saturating_add(at, *problem.window_right), 1));
  }
  return range;
}

// A length or cumulative length read from memory, made harmless.
inline std::int64_t clamp_length(std::int64_t value, std::int64_t limit) {
  return std::clamp<std::int64_t>(value, 0, limit);
}

}  // namespace attn::core
