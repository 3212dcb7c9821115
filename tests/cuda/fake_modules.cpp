// The fake driver's modules, functions and launches: kernels do nothing, and what was launched is
// recorded. Memory that is allocated in the order of a stream doesn't exist.
#include <algorithm>
#include <mutex>

#include "fake_functions.hpp"

std::vector<unsigned char> parameters_of(abi::Function function, void** parameters) {
  const auto* bytes = static_cast<const unsigned char*>(parameters[0]);
  const auto own = state.parameter_bytes_of.find(reinterpret_cast<std::uintptr_t>(function));
  return {bytes,
          bytes + (own != state.parameter_bytes_of.end() ? own->second : state.parameter_bytes)};
}

void record(const abi::LaunchConfig& config, abi::Function function,
            std::vector<unsigned char> parameters) {
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  ++state.launches;
  if (state.parameter_bytes > 0) {
    state.launched.push_back({reinterpret_cast<std::uintptr_t>(function), config.grid_x,
                              config.block_x, config.shared_bytes, config.stream,
                              std::move(parameters)});
  }
  state.grid[0] = config.grid_x, state.grid[1] = config.grid_y, state.grid[2] = config.grid_z;
  state.block[0] = config.block_x, state.block[1] = config.block_y;
  state.shared_bytes = config.shared_bytes;
  state.stream = config.stream;
  state.num_attributes = config.num_attributes;
  state.first_attribute = config.num_attributes > 0 ? config.attributes[0].id : 0;
}

abi::Result cuModuleLoadData(abi::Module* module, const void* image) {
  FAIL_IF_ASKED();
  if (!has_context()) return 201;
  if (std::memcmp(image,
                  "\x7f"
                  "ELF",
                  4) != 0)
    return abi::kInvalidImage;
  if (std::strcmp(static_cast<const char*>(image), test::kRefusedImage) == 0) {
    return abi::kNoBinaryForGpu;
  }
  const int loaded = ++state.modules_loaded;
  *module = reinterpret_cast<abi::Module>(static_cast<std::uintptr_t>(loaded) << 8);
  return 0;
}
abi::Result cuModuleGetFunction(abi::Function* function, abi::Module module, const char* name) {
  FAIL_IF_ASKED();
  if (std::strcmp(name, "missing") == 0) return abi::kNotFound;
  *function = reinterpret_cast<abi::Function>(reinterpret_cast<std::uintptr_t>(module) + 1);
  return 0;
}
abi::Result cuFuncGetAttribute(int* value, int attribute, abi::Function) {
  FAIL_IF_ASKED();
  *value = attribute == abi::kFunctionRegisters           ? 168
           : attribute == abi::kFunctionStaticSharedBytes ? 1024
           : attribute == abi::kFunctionMaxThreads        ? 512
                                                          : 0;
  return 0;
}
abi::Result cuLaunchKernelEx(const abi::LaunchConfig* config, abi::Function function,
                             void** parameters, void**) {
  FAIL_IF_ASKED();
  record(*config, function, parameters_of(function, parameters));
  return 0;
}
abi::Result cuMemAllocAsync(abi::DevicePointer* pointer, std::size_t, abi::Stream) {
  FAIL_IF_ASKED();
  *pointer = test::kDeviceMemory;
  ++state.allocations;
  return 0;
}
abi::Result cuMemFreeAsync(abi::DevicePointer, abi::Stream) {
  --state.allocations;
  return 0;
}
abi::Result cuMemsetD8Async(abi::DevicePointer, unsigned char, std::size_t, abi::Stream) {
  return 0;
}
abi::Result cuTensorMapEncodeTiled(abi::TensorMap* map, int type, std::uint32_t rank, void* address,
                                   const std::uint64_t* dims, const std::uint64_t* strides,
                                   const std::uint32_t* box, const std::uint32_t*, int, int swizzle,
                                   int, int) {
  FAIL_IF_ASKED();
  const std::uint64_t words[2] = {reinterpret_cast<std::uintptr_t>(address), state.maps.size()};
  std::memcpy(map, words, sizeof words);
  state.maps.push_back({{}, {}, rank, type, swizzle});
  std::copy(dims, dims + rank, state.maps.back().dims);
  std::copy(box, box + rank, state.maps.back().box);
  state.map_type = type;
  state.map_rank = rank;
  state.map_swizzle = swizzle;
  for (std::uint32_t i = 0; i < rank; ++i) {
    state.map_dims[i] = dims[i];
    state.map_box[i] = box[i];
    if (i > 0) state.map_strides[i - 1] = strides[i - 1];
  }
  return 0;
}
