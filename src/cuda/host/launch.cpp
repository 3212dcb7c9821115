// Launches; see launch.hpp.
#include "cuda/host/launch.hpp"

#include <array>

namespace attn::cuda {

std::string to_string(const KernelLaunch& launch) {
  const auto& [kernel, grid, parameters] = launch;
  return std::string(kernel->spec.entry) + " of " + to_string(kernel->spec.config) + " with " +
         std::to_string(grid.x) + "x" + std::to_string(grid.y) + "x" + std::to_string(grid.z) +
         " blocks of " + std::to_string(kernel->spec.threads) + " threads and " +
         std::to_string(kernel->spec.shared_bytes) + " bytes of shared memory";
}

core::Status find_or_load(Modules& modules, const CurrentContext& context,
                          std::span<const KernelSpec> specs, abi::Stream stream,
                          std::span<const Kernel*> kernels) {
  modules.find_all(context, specs, kernels);
  std::size_t found = 0;
  while (found < specs.size() && kernels[found] != nullptr) ++found;
  if (found == specs.size()) return {};
  const KernelSpec* const missing = &specs[found];
  const Driver& driver = context.driver();
  int capturing = abi::kCaptureNone;
  const abi::Result result = driver.api().cuStreamIsCapturing(stream, &capturing);
  if (result != abi::kSuccess) {
    return driver.status(
        result, "cuStreamIsCapturing",
        "asking whether the stream captures, before loading " + std::string(missing->entry));
  }
  if (capturing != abi::kCaptureNone) {
    return core::Status::invalid("cuda: " + std::string(missing->entry) + " of " +
                                 to_string(missing->config) +
                                 ": found a capturing stream before the kernel was loaded; "
                                 "accepted after prepare() or a first call outside of a capture");
  }
  return modules.load_all(context, specs, kernels);
}

core::Status launch_kernel(const CurrentContext& context, const KernelLaunch& launch,
                           abi::Stream stream, bool overlap) {
  const Kernel& kernel = *launch.kernel;
  const Grid grid = launch.grid;
  if (grid.empty()) return {};  // nothing to do
  std::array<abi::LaunchAttribute, 2> attributes{};
  unsigned count = 0;
  if (kernel.spec.cluster > 1) {
    attributes[count].id = abi::kLaunchClusterDimension;
    attributes[count++].value.cluster = {kernel.spec.cluster, 1, 1};
  }
  if (overlap) {
    attributes[count].id = abi::kLaunchProgrammaticSerialization;
    attributes[count++].value.flag = 1;
  }
  const abi::LaunchConfig config{grid.x,
                                 grid.y,
                                 grid.z,
                                 kernel.spec.threads,
                                 1,
                                 1,
                                 kernel.spec.shared_bytes,
                                 stream,
                                 count > 0 ? attributes.data() : nullptr,
                                 count};
  const Driver& driver = context.driver();
  void* pointers[] = {const_cast<void*>(launch.parameters.data)};  // the driver only reads
  const abi::Result result =
      driver.api().cuLaunchKernelEx(&config, kernel.function, pointers, nullptr);
  if (result == abi::kSuccess) return {};
  return driver.status(
      result, "cuLaunchKernelEx",
      "launching " + to_string(launch) + " on cuda:" + std::to_string(context.ordinal()));
}

}  // namespace attn::cuda
