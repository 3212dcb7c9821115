// Launch constants of passes/backward_preprocess.cu, for the host, which sizes the grid, and the
// kernel.
#pragma once

namespace attn::device::backward_preprocess {

inline constexpr int kThreads = 128;

}  // namespace attn::device::backward_preprocess
