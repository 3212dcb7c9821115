// The emulator's libcuda.so.1: modules and launches. The rest is the fake driver's.
// An image is 8 bytes and the path of a host library, see nvrtc.cpp.
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>

#include "../fake_functions.hpp"
#include "runtime.hpp"

namespace {

struct Kernel {
  std::string name;
  void (*call)(void*);
  unsigned parameter_bytes;
};

const Kernel& kernel_of(abi::Function function) {
  return *reinterpret_cast<const Kernel*>(function);
}

unsigned cluster_of(const abi::LaunchConfig& config) {
  for (unsigned i = 0; i < config.num_attributes; ++i) {
    const abi::LaunchAttribute& attribute = config.attributes[i];
    if (attribute.id == abi::kLaunchClusterDimension) return attribute.value.cluster.x;
  }
  return 1;
}

}  // namespace

std::vector<unsigned char> parameters_of(abi::Function function, void** parameters) {
  const auto* bytes = static_cast<const unsigned char*>(parameters[0]);
  return {bytes, bytes + kernel_of(function).parameter_bytes};
}

void record(const abi::LaunchConfig& config, abi::Function function,
            std::vector<unsigned char> parameters) {
  static std::mutex one_launch;
  const std::lock_guard<std::mutex> lock(one_launch);
  const Kernel& kernel = kernel_of(function);
  void* parameter = nullptr;
  // Tensor maps are aligned to 64 bytes.
  if (posix_memalign(&parameter, 64, parameters.size() + 64) != 0) std::abort();
  std::memcpy(parameter, parameters.data(), parameters.size());
  emulator::run({kernel.name.c_str(), config.grid_x, config.grid_y, config.grid_z, config.block_x,
                 cluster_of(config), config.shared_bytes, kernel.call, parameter});
  std::free(parameter);
}

abi::Result cuModuleLoadData(abi::Module* module, const void* image) {
  const char* path = static_cast<const char*>(image) + 8;
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    std::fprintf(stderr, "emulator: %s\n", dlerror());
    return abi::kInvalidImage;
  }
  *module = reinterpret_cast<abi::Module>(library);
  return 0;
}
abi::Result cuModuleGetFunction(abi::Function* function, abi::Module module, const char* name) {
  void* library = reinterpret_cast<void*>(module);
  void* call = dlsym(library, (std::string("attn_emulator_launch_") + name).c_str());
  void* bytes = dlsym(library, (std::string("attn_emulator_bytes_") + name).c_str());
  if (call == nullptr || bytes == nullptr) return abi::kNotFound;
  // As long as the process, as a module is.
  auto* kernel = new Kernel{name, reinterpret_cast<void (*)(void*)>(call),
                            *static_cast<const unsigned*>(bytes)};
  *function = reinterpret_cast<abi::Function>(kernel);
  return 0;
}
abi::Result cuFuncGetAttribute(int* value, int attribute, abi::Function) {
  *value = attribute == abi::kFunctionRegisters           ? 64
           : attribute == abi::kFunctionStaticSharedBytes ? 1024
           : attribute == abi::kFunctionMaxThreads        ? 1024
                                                          : 0;
  return 0;
}
abi::Result cuLaunchKernelEx(const abi::LaunchConfig* config, abi::Function function,
                             void** parameters, void**) {
  record(*config, function, parameters_of(function, parameters));
  return 0;
}
abi::Result cuMemAllocAsync(abi::DevicePointer* pointer, std::size_t bytes, abi::Stream) {
  return cuMemAlloc_v2(pointer, bytes);
}
abi::Result cuMemFreeAsync(abi::DevicePointer pointer, abi::Stream) {
  return cuMemFree_v2(pointer);
}
abi::Result cuMemsetD8Async(abi::DevicePointer pointer, unsigned char value, std::size_t bytes,
                            abi::Stream) {
  std::memset(reinterpret_cast<void*>(pointer), value, bytes);
  return 0;
}
abi::Result cuTensorMapEncodeTiled(abi::TensorMap* map, int type, std::uint32_t rank, void* address,
                                   const std::uint64_t* dims, const std::uint64_t* strides,
                                   const std::uint32_t* box, const std::uint32_t*, int, int swizzle,
                                   int, int) {
  emulator::TensorMap own{};
  own.address = reinterpret_cast<std::uintptr_t>(address);
  own.rank = static_cast<std::uint8_t>(rank);
  own.type = static_cast<std::uint8_t>(type);
  own.swizzle = static_cast<std::uint8_t>(swizzle);
  own.element_bytes = type == abi::kTensorMapU8 ? 1 : type == abi::kTensorMapF32 ? 4 : 2;
  std::copy(dims, dims + rank, own.dims);
  std::copy(box, box + rank, own.box);
  std::copy(strides, strides + (rank - 1), own.strides);
  std::memset(map, 0, sizeof *map);
  std::memcpy(map, &own, sizeof own);
  return 0;
}
