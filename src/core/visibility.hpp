// Which keys a query sees (docs/semantics.md, "Diagonal" and "Visible"): pure functions of indices
// within a sequence.
#pragma once

#include <algorithm>
#include <attn/arguments.hpp>
#include <attn/problem.hpp>
#include <cstdint>
#include <limits>

namespace attn::core {

// Query i of a sequence is aligned with key i + diag.
inline std::int64_t diagonal_of(Diagonal diagonal, std::int64_t explicit_value, std::int64_t len_q,
                                std::int64_t len_kv) {
  switch (diagonal) {
    case Diagonal::bottom_right: return len_kv - len_q;
    case Diagonal::top_left: return 0;
    case Diagonal::explicit_value: break;
  }
  return explicit_value;
}

// For Diagonal::explicit_value: the call's diag if given, else the diagonal of its origin.
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

// The diagonal of a call, and how many keys left and right of it queries see (causal and windows).
struct Band {
  static constexpr std::int64_t kUnlimited = -1;

  // Query i of a sequence is aligned with key i + diag(len_q, len_kv).
  bool bottom_right = true;  // diag is the sequence's len_kv - len_q ...
  std::int64_t fixed = 0;    // ... or this
  // Query i sees the keys from i + diag - left to i + diag + right; causal sets right = 0.
  std::int64_t left = kUnlimited;
  std::int64_t right = kUnlimited;

  [[nodiscard]] std::int64_t diag(std::int64_t len_q, std::int64_t len_kv) const {
    return bottom_right ? len_kv - len_q : fixed;
  }
  // fixed - left and fixed + right, saturated; the limits of 64 bits if unlimited.
  [[nodiscard]] std::int64_t low() const {
    if (left == kUnlimited) return std::numeric_limits<std::int64_t>::min();
    return saturating_add(fixed, -left);
  }
  [[nodiscard]] std::int64_t high() const {
    if (right == kUnlimited) return std::numeric_limits<std::int64_t>::max();
    return saturating_add(fixed, right);
  }
};

inline Band band_of(const Problem& problem, std::int64_t explicit_diag) {
  Band band;
  band.bottom_right = problem.diagonal == Diagonal::bottom_right;
  if (problem.diagonal == Diagonal::explicit_value) band.fixed = explicit_diag;
  if (problem.window_left) band.left = *problem.window_left;
  if (problem.window_right) band.right = *problem.window_right;
  if (problem.causal) band.right = 0;
  return band;
}

// The keys of [0, len_kv) that query i sees under causal and windows. kv_begin, kv_end, mask and
// bias may hide more.
inline KeyRange keys_in(const Band& band, std::int64_t i, std::int64_t diag, std::int64_t len_kv) {
  const std::int64_t at = saturating_add(i, diag);
  KeyRange range{0, len_kv};
  if (band.left != Band::kUnlimited) {
    range.begin = std::max(range.begin, saturating_add(at, -band.left));
  }
  if (band.right != Band::kUnlimited) {
    range.end = std::min(range.end, saturating_add(saturating_add(at, band.right), 1));
  }
  return range;
}

// The same for one query of a problem.
inline KeyRange keys_in(const Problem& problem, std::int64_t i, std::int64_t diag,
                        std::int64_t len_kv) {
  return keys_in(band_of(problem, diag), i, diag, len_kv);
}

// Clamps a length or cumulative length read from memory, so that a bad value can't cause an access
// out of bounds.
inline std::int64_t clamp_length(std::int64_t value, std::int64_t limit) {
  return std::clamp<std::int64_t>(value, 0, limit);
}

}  // namespace attn::core
