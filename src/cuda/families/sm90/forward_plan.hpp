// The plan of sm90/forward.cu: supported problems, Config, grid and workspace.
#pragma once

#include <attn/problem.hpp>
#include <string>

#include "core/access.hpp"
#include "cuda/host/plan.hpp"

namespace attn::cuda::sm90 {

inline constexpr const char* kForwardEntry = "attn_forward_sm90";
inline constexpr const char* kCounterEntry = "attn_tile_counter";

// q_tiles: tiles of queries per head of the longest sequence, or per tile_heads heads that share
// tiles. num_tiles: of all heads and sequences; above dim 256, also of all parts of O's columns.
struct TileCounts {
  std::int64_t q_tiles = 0;
  std::int64_t num_tiles = 0;
};
TileCounts tile_counts(const Problem& problem, std::int64_t tile_q, std::int64_t tile_heads);

// Why the kernel does not run the problem; "" if it does.
std::string forward_refusal(const Problem& problem, const DeviceFacts& facts, core::Access access);
// For problems that are not refused.
CudaPlan plan_forward(const Problem& problem, const DeviceFacts& facts);

}  // namespace attn::cuda::sm90
