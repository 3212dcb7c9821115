// Launch constants and parameters of passes/append_rows.cu, for the host and the kernel.
#pragma once
#include "shared/cache.cuh"

namespace attn::device::append_rows {

inline constexpr int kThreads = 128;
inline constexpr int kRows = kThreads / 32;  // rows per block, one per warp

struct Params {
  Arguments common;
  Cache cache;
};

}  // namespace attn::device::append_rows
