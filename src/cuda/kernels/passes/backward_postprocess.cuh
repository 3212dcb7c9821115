// Launch constants of passes/backward_postprocess.cu, for the host, which sizes the grid, and the
// kernel.
#pragma once

namespace attn::device::backward_postprocess {

inline constexpr int kThreads = 128;
inline constexpr int kRows = 64;  // rows per block

}  // namespace attn::device::backward_postprocess
