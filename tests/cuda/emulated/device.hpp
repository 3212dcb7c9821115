// A device for small kernels on the host, so that they are tested without a GPU: the words of the
// language, a fiber for each thread of a block, the blocks one after the other. Kernels of tensor
// cores are not for this: ptx/ here has arithmetic alone.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstddef>
#include <vector>

#include "fibers.hpp"

#define __device__
#define __global__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
#define __shared__ static  // of the block that runs

// NOLINTBEGIN: names of the language
using std::max;
using std::min;

struct float2 {
  float x, y;
};
struct float4 {
  float x, y, z, w;
};
struct int2 {
  int x, y;
};
struct int4 {
  int x, y, z, w;
};
struct uint2 {
  unsigned x, y;
};
struct uint4 {
  unsigned x, y, z, w;
};
struct dim3 {
  unsigned x = 0;
};

inline thread_local dim3 threadIdx;
inline thread_local dim3 blockIdx;
inline thread_local dim3 gridDim;

namespace emulated {

struct Warp {
  Barrier barrier{32};
  std::array<std::uint32_t, 32> words{};
};
struct Block {
  explicit Block(unsigned threads) : barrier(threads), warps(threads / 32) {}
  Barrier barrier;
  std::vector<Warp> warps;
};
inline thread_local Block* block = nullptr;

// What each lane gets of the words of all.
template <class Pick>
std::uint32_t exchange(std::uint32_t word, Pick pick) {
  Warp& warp = block->warps[threadIdx.x / 32];
  warp.words[threadIdx.x % 32] = word;
  warp.barrier.arrive_and_wait();
  const std::uint32_t picked = pick(warp.words);
  warp.barrier.arrive_and_wait();
  return picked;
}

// Runs a kernel. A thread that returns early takes no part in what the others wait for.
template <class Kernel, class Parameters>
void run(Kernel kernel, unsigned blocks, unsigned threads, const Parameters& parameters) {
  Fibers fibers(threads);
  gridDim.x = blocks;
  for (unsigned b = 0; b < blocks; ++b) {
    Block shared(threads);
    block = &shared;
    blockIdx.x = b;
    fibers.run(
        [&](std::size_t t) {
          kernel(parameters);
          shared.barrier.arrive_and_drop();
          shared.warps[t / 32].barrier.arrive_and_drop();
        },
        [](std::size_t t) { threadIdx.x = static_cast<unsigned>(t); });
  }
}

}  // namespace emulated

inline void __syncthreads() {
  emulated::block->barrier.arrive_and_wait();
}
inline float __shfl_xor_sync(unsigned, float value, int mask) {
  return std::bit_cast<float>(emulated::exchange(
      std::bit_cast<std::uint32_t>(value),
      [&](const auto& words) { return words[(threadIdx.x % 32) ^ static_cast<unsigned>(mask)]; }));
}
inline unsigned __shfl_xor_sync(unsigned mask, unsigned value, int lanes) {
  return std::bit_cast<unsigned>(__shfl_xor_sync(mask, std::bit_cast<float>(value), lanes));
}
inline int __reduce_min_sync(unsigned, int value) {
  return std::bit_cast<int>(
      emulated::exchange(std::bit_cast<std::uint32_t>(value), [](const auto& words) {
        int least = std::bit_cast<int>(words[0]);
        for (const std::uint32_t word : words) least = std::min(least, std::bit_cast<int>(word));
        return std::bit_cast<std::uint32_t>(least);
      }));
}
inline int __reduce_max_sync(unsigned mask, int value) {
  return ~__reduce_min_sync(mask, ~value);
}
inline float __uint_as_float(unsigned bits) {
  return std::bit_cast<float>(bits);
}
inline unsigned __float_as_uint(float value) {
  return std::bit_cast<unsigned>(value);
}
inline void atomicAdd(unsigned* at, unsigned value) {
  std::atomic_ref<unsigned>(*at).fetch_add(value);
}
// NOLINTEND
