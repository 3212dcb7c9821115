// Launch constants of passes/bias_gradient_sum.cu, for the host, which sizes the grid, and the
// kernel.
#pragma once

namespace attn::device::bias_gradient_sum {

inline constexpr int kThreads = 256;  // one element each

}  // namespace attn::device::bias_gradient_sum
