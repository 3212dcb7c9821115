// Launch constants of passes/uncovered_rows.cu, for the host, which sizes the grid, and the kernel.
#pragma once

namespace attn::device::uncovered_rows {

inline constexpr int kThreads = 256;
inline constexpr int kRows = 256;  // rows per block, one per thread

}  // namespace attn::device::uncovered_rows
