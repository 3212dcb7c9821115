// What several choices of a CPU plan depend on.
#pragma once

#include <attn/problem.hpp>
#include <cstdint>

namespace attn::cpu {

// Whether the machine has at most 4 processors (Linux only, else false). Plans then assume a core
// for each. On larger virtual machines some processors share a core, which the guest can't see.
bool has_few_processors();

// Whether decode reads memory faster if it visits rows in the order of their addresses without
// prefetching them than by prefetching a tile of keys ahead: on AMD processors without AVX-512
// (docs/kernels/cpu_decode.md, "Heads together"). ATTN_CPU_DECODE_ORDER replaces the rule.
bool reads_faster_in_order();

// Whether the backward in f32 and f64 takes tall strips of rows and long blocks of keys. It then
// loads rows of q, dout and dq less often, but packed keys leave L2. That pays on AMD processors
// (docs/kernels/cpu_f32.md, "Long blocks on AMD"). ATTN_CPU_KEY_BLOCKS replaces the rule.
bool has_long_blocks();

// Windows with left + right of at most this have tiles of their own.
inline constexpr std::int64_t kNarrow = 512;
inline bool has_narrow_window(const Problem& p) {
  if (!p.window_left || (!p.causal && !p.window_right)) return false;
  const std::int64_t right = p.causal ? 0 : *p.window_right;
  return *p.window_left <= kNarrow && right <= kNarrow - *p.window_left;
}

}  // namespace attn::cpu
