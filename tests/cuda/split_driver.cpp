// A libcuda.so.1 that shows the first GPU of the machine's driver, which ATTN_SPLIT_DRIVER names,
// as two: for devices_test.cpp on machines of one GPU. Device 1 is another context of it, with
// memory, modules and streams of its own; all else goes to the machine's driver as it is.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "cuda/host/driver_abi.hpp"

using namespace attn::cuda;  // NOLINT: as the parameters are written in the list

namespace {

constexpr int kPointerContext = 1;  // CU_POINTER_ATTRIBUTE_CONTEXT
std::mutex mutex;
abi::Context second = nullptr;  // device 1

// Null where the machine's driver lacks it.
void* of_machine(const char* name) {
  static void* const library = [] {
    const char* path = std::getenv("ATTN_SPLIT_DRIVER");
    void* opened = dlopen(path == nullptr ? "(unset)" : path, RTLD_NOW | RTLD_LOCAL);
    if (opened == nullptr) {
      std::fprintf(stderr, "split driver: no driver in ATTN_SPLIT_DRIVER: %s\n", dlerror());
      std::abort();
    }
    return opened;
  }();
  return dlsym(library, name);
}

template <class... Parameters>
abi::Result call(const char* name, Parameters... parameters) {
  return reinterpret_cast<abi::Result (*)(Parameters...)>(of_machine(name))(parameters...);
}

abi::Result get_count(int* count) {
  const abi::Result result = call("cuDeviceGetCount", count);
  if (result == abi::kSuccess && *count > 0) *count = 2;
  return result;
}

abi::Result get_device(abi::Device* device, int ordinal) {
  if (ordinal < 0 || ordinal > 1) return abi::kInvalidDevice;
  *device = ordinal;
  return abi::kSuccess;
}

abi::Result get_name(char* name, int length, abi::Device /*device*/) {
  return call("cuDeviceGetName", name, length, 0);
}

abi::Result get_attribute(int* value, int attribute, abi::Device /*device*/) {
  return call("cuDeviceGetAttribute", value, attribute, 0);
}

abi::Result get_memory(std::size_t* bytes, abi::Device /*device*/) {
  return call("cuDeviceTotalMem_v2", bytes, 0);
}

abi::Result retain(abi::Context* context, abi::Device device) {
  if (device == 0) return call("cuDevicePrimaryCtxRetain", context, 0);
  const std::lock_guard<std::mutex> lock(mutex);
  if (second == nullptr) {
    const abi::Result made = call("cuCtxCreate_v2", &second, 0u, 0);
    abi::Context popped = nullptr;
    if (made == abi::kSuccess) call("cuCtxPopCurrent_v2", &popped);  // creating made it current
    if (made != abi::kSuccess) return made;
  }
  *context = second;
  return abi::kSuccess;
}

bool is_second(abi::Context context) {
  const std::lock_guard<std::mutex> lock(mutex);
  return context != nullptr && context == second;
}

abi::Result get_current_device(abi::Device* device) {
  const abi::Result result = call("cuCtxGetDevice", device);
  abi::Context current = nullptr;
  if (result == abi::kSuccess && call("cuCtxGetCurrent", &current) == abi::kSuccess) {
    *device = is_second(current) ? 1 : 0;
  }
  return result;
}

abi::Result get_pointer(unsigned count, int* attributes, void** values,
                        abi::DevicePointer pointer) {
  const abi::Result result = call("cuPointerGetAttributes", count, attributes, values, pointer);
  for (unsigned n = 0; result == abi::kSuccess && n < count; ++n) {
    if (attributes[n] != abi::kPointerDeviceOrdinal) continue;
    abi::Context owner = nullptr;
    int attribute = kPointerContext;
    void* value = &owner;
    const abi::Result known = call("cuPointerGetAttributes", 1u, &attribute, &value, pointer);
    if (known == abi::kSuccess && is_second(owner)) *static_cast<int*>(values[n]) = 1;
  }
  return result;
}

void* find(const char* name) {
  const std::pair<const char*, void*> ours[]{
      {"cuDeviceGetCount", reinterpret_cast<void*>(&get_count)},
      {"cuDeviceGet", reinterpret_cast<void*>(&get_device)},
      {"cuDeviceGetName", reinterpret_cast<void*>(&get_name)},
      {"cuDeviceGetAttribute", reinterpret_cast<void*>(&get_attribute)},
      {"cuDeviceTotalMem_v2", reinterpret_cast<void*>(&get_memory)},
      {"cuDevicePrimaryCtxRetain", reinterpret_cast<void*>(&retain)},
      {"cuCtxGetDevice", reinterpret_cast<void*>(&get_current_device)},
      {"cuPointerGetAttributes", reinterpret_cast<void*>(&get_pointer)}};
  for (const auto& [known, function] : ours) {
    if (std::strcmp(known, name) == 0) return function;
  }
  return of_machine(name);
}

}  // namespace

// Each name stands for the function that `find` gives when it is looked up (an indirect function).
#define SPLIT(symbol, parameters)                                                             \
  extern "C" __attribute__((visibility("hidden"))) abi::Result(*find_##symbol()) parameters { \
    return reinterpret_cast<abi::Result(*) parameters>(find(#symbol));                        \
  }                                                                                           \
  extern "C" __attribute__((visibility("default"),                                            \
                            ifunc("find_" #symbol))) abi::Result symbol parameters;
ATTN_CUDA_DRIVER_FUNCTIONS(SPLIT)
// For NVRTC, whose cache of compiled kernels is the driver's.
SPLIT(cuGetExportTable, (const void** table, const void* id))
