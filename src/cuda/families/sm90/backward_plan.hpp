// The plan of sm90/backward.cu: supported problems, Config, grid and workspace.
#pragma once

#include <attn/problem.hpp>
#include <cstdint>
#include <string>

#include "core/access.hpp"
#include "cuda/host/plan.hpp"

namespace attn::cuda::sm90 {

inline constexpr const char* kBackwardEntry = "attn_backward_sm90";

// Shared by the plans of the sm90 kernels.
inline constexpr int kSharedPerBlock = 232448;  // bytes, compute capability 9.0
inline bool has_lengths(const Problem& p) {
  return p.lengths_q || p.lengths_kv || p.layout_q == Layout::packed ||
         p.layout_kv == Layout::packed;
}
inline bool has_row_ranges(const Problem& p) {
  return p.kv_begin || p.kv_end;
}
// Whether every query sees a key under causal and windows, so that some block writes to every tile
// of dq.
bool every_row_sees_a_key(const Problem& problem);
// The number of tiles of keys of sm90/backward.cu, over all key heads and sequences.
std::int64_t num_key_tiles(const Problem& problem);
// Bytes of shared memory for a tile of the bias and a tile of the mask.
int score_bytes_of(const Problem& problem, int tile_q, int tile_kv);
// Bytes of shared memory for a block's list of tiles of queries; 0 without kv_begin and kv_end.
int visit_bytes_of(const Problem& problem, std::int64_t tile_q);
// Sets the constants of the Config that depend on options.
void set_options(Config& config, const Problem& problem);

// Why the kernel does not run the problem; "" if it does.
std::string backward_refusal(const Problem& problem, core::Access access);
// For problems that are not refused.
CudaPlan plan_backward(const Problem& problem, const DeviceFacts& facts);

}  // namespace attn::cuda::sm90
