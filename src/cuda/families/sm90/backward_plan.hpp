// The plan of sm90/backward.cu: which problems it takes, its Config, grid and workspace.
#pragma once

#include <attn/problem.hpp>
#include <cstdint>
#include <string>

#include "core/access.hpp"
#include "cuda/host/plan.hpp"

namespace attn::cuda::sm90 {

inline constexpr const char* kBackwardEntry = "attn_backward_sm90";

// What the plans of both kernels share.
inline constexpr int kSharedPerBlock = 232448;  // of compute capability 9.0
inline bool has_lengths(const Problem& p) {
  return p.lengths_q || p.lengths_kv || p.layout_q == Layout::packed ||
         p.layout_kv == Layout::packed;
}
inline bool has_row_ranges(const Problem& p) {
  return p.kv_begin || p.kv_end;
}
// Whether causal and windows leave a key to each row, so that some block adds to each tile of dq.
bool every_row_sees_a_key(const Problem& problem);
// Tiles of keys of sm90/backward.cu, of all key heads and sequences.
std::int64_t num_key_tiles(const Problem& problem);
// Bytes of a tile of the bias and one of the mask.
int score_bytes_of(const Problem& problem, int tile_q, int tile_kv);
// With kv_begin or kv_end: bytes of a block's list of the tiles of queries.
int visit_bytes_of(const Problem& problem, std::int64_t tile_q);
// The constants of the Config that options set.
void set_options(Config& config, const Problem& problem);

// Why the kernel does not run the problem; "" if it does.
std::string backward_refusal(const Problem& problem, core::Access access);
// For problems that are not refused.
CudaPlan plan_backward(const Problem& problem, const DeviceFacts& facts);

}  // namespace attn::cuda::sm90
