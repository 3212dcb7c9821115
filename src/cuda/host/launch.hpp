// Launch: queues a loaded kernel on the caller's stream. Allocates nothing and waits for nothing. A
// capturing stream records the kernel. graphs.hpp launches the kernels of a call together.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <type_traits>

#include "cuda/host/modules.hpp"

namespace attn::cuda {

struct Grid {
  unsigned x = 1;
  unsigned y = 1;
  unsigned z = 1;

  [[nodiscard]] bool empty() const { return x == 0 || y == 0 || z == 0; }
};

// The limit of every supported device and driver for one kernel.
inline constexpr std::size_t kMaxParameterBytes = 4096;

// The parameters of a launch: one structure, which the kernel takes by `const __grid_constant__`.
// The driver copies it during the launch call.
struct ParameterBlock {
  const void* data = nullptr;
  std::size_t bytes = 0;
};
template <class Parameters>
ParameterBlock block_of(const Parameters& parameters) {
  static_assert(std::is_trivially_copyable_v<Parameters> &&
                sizeof(Parameters) <= kMaxParameterBytes);
  return {&parameters, sizeof(Parameters)};
}

// A kernel with the grid and parameters of a call.
struct KernelLaunch {
  const Kernel* kernel = nullptr;
  Grid grid;
  ParameterBlock parameters;
};
// "attn_forward of sm80/forward.cu ... with 8x1x1 blocks of 128 threads and ..."
std::string to_string(const KernelLaunch& launch);

// The stream of a call; 0 (the legacy default stream) is a valid one.
inline abi::Stream stream_of(void* stream) {
  return static_cast<abi::Stream>(stream);
}

// Finds the kernels of a call, one for each of `specs`. Compiles (concurrently) and loads those
// that are missing, but refuses to do so if the stream captures, because loading can't be recorded.
core::Status find_or_load(Modules& modules, const CurrentContext& context,
                          std::span<const KernelSpec> specs, abi::Stream stream,
                          std::span<const Kernel*> kernels);

// `overlap`: programmatic dependent launch. The kernel may start before the previous kernel of the
// stream has ended, and waits for it by griddepcontrol (needs 9.0).
core::Status launch_kernel(const CurrentContext& context, const KernelLaunch& launch,
                           abi::Stream stream, bool overlap = false);

template <class Parameters>
core::Status launch(const CurrentContext& context, const Kernel& kernel, Grid grid,
                    abi::Stream stream, const Parameters& parameters, bool overlap = false) {
  return launch_kernel(context, {&kernel, grid, block_of(parameters)}, stream, overlap);
}

}  // namespace attn::cuda
