// Launch constants and parameters of passes/tile_counter.cu, for the host and the kernel.
#pragma once

namespace attn::device::tile_counter {

inline constexpr int kThreads = 32;

struct Params {
  unsigned* counter = nullptr;
};

}  // namespace attn::device::tile_counter
