// Launch constants of passes/bias_gradient_convert.cu, for the host, which sizes the grid, and the
// kernel.
#pragma once

namespace attn::device::bias_gradient_convert {

inline constexpr int kThreads = 128;
inline constexpr int kKeys = 1024;  // keys per block
inline constexpr int kQueries = 8;  // queries per block

}  // namespace attn::device::bias_gradient_convert
