// Zeroes the counter of a dynamic tile scheduler. Runs on the stream before the kernel that counts.
// Grid: one block. Config: none.
#include "config.cuh"
#include "passes/tile_counter.cuh"
#include "ptx/grid.cuh"

extern "C" __global__ void __launch_bounds__(attn::device::tile_counter::kThreads)
    attn_tile_counter(const __grid_constant__ attn::device::tile_counter::Params p) {
  // The previous kernel on the stream may still use the workspace.
  ptx::WaitForPrimary();
  if (threadIdx.x == 0) *p.counter = 0;
}
