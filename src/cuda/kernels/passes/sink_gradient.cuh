// Launch constants of passes/sink_gradient.cu, for the host, which sizes the grid, and the kernel.
#pragma once

namespace attn::device::sink_gradient {

inline constexpr int kThreads = 1024;

}  // namespace attn::device::sink_gradient
