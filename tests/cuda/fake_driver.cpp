// The functions of libcuda.so.1 on devices that do not exist; see fake_driver.hpp.
#include <cstdlib>
#include <iterator>
#include <map>
#include <mutex>

#include "fake_functions.hpp"

namespace attn::cuda::abi {
struct ContextHandle {
  int device;
  std::uint64_t id;
};
}  // namespace attn::cuda::abi

test::FakeDriver state;

namespace {

abi::ContextHandle primary[2] = {{0, 11}, {1, 12}};
thread_local std::vector<abi::Context> stack;

// What cuMemAlloc handed out.
struct Piece {
  std::size_t bytes;
  int device;
};
std::mutex memory_mutex;
std::map<abi::DevicePointer, Piece>& pieces() {
  static auto& all = *new std::map<abi::DevicePointer, Piece>;
  return all;
}

// The device whose memory it is, -1 for none.
int device_of(abi::DevicePointer pointer) {
  const std::lock_guard<std::mutex> lock(memory_mutex);
  const auto after = pieces().upper_bound(pointer);
  if (after == pieces().begin()) return -1;
  const auto& [begin, piece] = *std::prev(after);
  return pointer < begin + piece.bytes ? piece.device : -1;
}

void* host(abi::DevicePointer pointer) {
  return reinterpret_cast<void*>(pointer);
}

}  // namespace

bool has_context() {
  return !stack.empty();
}

FAKE test::FakeDriver* attn_fake_driver() {
  return &state;
}
// A context of device 0 that is not the primary one becomes current.
FAKE void attn_fake_own_context(std::uint64_t id) {
  if (id == 0) return stack.clear();
  thread_local abi::ContextHandle own;
  own = {0, id};
  stack.push_back(&own);
}

// NVRTC asks the driver that it finds for it and doesn't look whether there is one.
FAKE abi::Result cuGetExportTable(const void** table, const void*) {
  *table = nullptr;
  return abi::kNotFound;
}

abi::Result cuInit(unsigned) {
  return state.init_result;
}
abi::Result cuDriverGetVersion(int* version) {
  const char* asked = std::getenv("ATTN_FAKE_DRIVER_VERSION");
  *version = asked != nullptr ? std::atoi(asked) : state.version;
  return 0;
}
abi::Result cuGetErrorName(abi::Result result, const char** name) {
  *name = result == abi::kOutOfMemory ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_FAKE";
  return result == 12345 ? abi::kInvalidValue : 0;
}
abi::Result cuGetErrorString(abi::Result, const char** text) {
  *text = "as the test asked";
  return 0;
}
abi::Result cuDeviceGetCount(int* count) {
  const char* asked = std::getenv("ATTN_FAKE_DEVICES");
  *count = asked != nullptr ? std::atoi(asked) : state.num_devices;
  return 0;
}
abi::Result cuDeviceGet(abi::Device* device, int ordinal) {
  *device = ordinal;
  return 0;
}
abi::Result cuDeviceGetName(char* name, int, abi::Device) {
  FAIL_IF_ASKED();
  std::strcpy(name, ATTN_FAKE_NAME);
  return 0;
}
// Few multiprocessors let a small case fill them.
int num_sms() {
  const char* asked = std::getenv("ATTN_FAKE_SMS");
  return asked != nullptr ? std::atoi(asked) : 132;
}
abi::Result cuDeviceGetAttribute(int* value, int attribute, abi::Device) {
  FAIL_IF_ASKED();
  switch (attribute) {
    case abi::kMultiprocessorCount: *value = num_sms(); return 0;
    case abi::kL2CacheSize: *value = 50 << 20; return 0;
    case abi::kMaxThreadsPerMultiprocessor: *value = 2048; return 0;
    case abi::kComputeCapabilityMajor: *value = state.major; return 0;
    case abi::kComputeCapabilityMinor: *value = state.minor; return 0;
    case abi::kMaxSharedMemoryPerMultiprocessor: *value = 233472; return 0;
    case abi::kMaxRegistersPerMultiprocessor: *value = 65536; return 0;
    case abi::kMaxSharedMemoryPerBlockOptin: *value = 232448; return 0;
    default: return abi::kInvalidValue;
  }
}
abi::Result cuDeviceTotalMem_v2(std::size_t* bytes, abi::Device) {
  *bytes = std::size_t{80} << 30;
  return 0;
}
abi::Result cuDevicePrimaryCtxRetain(abi::Context* context, abi::Device device) {
  FAIL_IF_ASKED();
  ++state.contexts_retained;
  *context = &primary[device];
  return 0;
}
abi::Result cuCtxGetCurrent(abi::Context* context) {
  FAIL_IF_ASKED();
  *context = stack.empty() ? nullptr : stack.back();
  return 0;
}
abi::Result cuCtxGetDevice(abi::Device* device) {
  ++state.devices_asked;
  *device = stack.back()->device;
  return 0;
}
abi::Result cuCtxGetId(abi::Context context, unsigned long long* id) {
  *id = context->id;
  return 0;
}
abi::Result cuCtxPushCurrent_v2(abi::Context context) {
  stack.push_back(context);
  return 0;
}
abi::Result cuCtxPopCurrent_v2(abi::Context* context) {
  *context = stack.back();
  stack.pop_back();
  return 0;
}
abi::Result cuPointerGetAttributes(unsigned count, int* attributes, void** values,
                                   abi::DevicePointer pointer) {
  FAIL_IF_ASKED();
  state.attributes_asked += static_cast<int>(count);
  const int owner = device_of(pointer);
  const bool device =
      owner >= 0 || (pointer >= test::kDeviceMemory && pointer < test::kManagedMemory);
  const bool managed = pointer >= test::kManagedMemory && pointer < test::kPinnedMemory;
  const bool pinned = pointer >= test::kPinnedMemory && pointer < 2 * test::kPinnedMemory;
  for (unsigned i = 0; i < count; ++i) {
    auto* value = static_cast<int*>(values[i]);
    if (attributes[i] == abi::kPointerMemoryType) {
      *value = device || managed ? 2 : pinned ? 1 : 0;
    } else if (attributes[i] == abi::kPointerDeviceOrdinal) {
      *value = owner >= 0 ? owner
               : device   ? static_cast<int>(pointer / test::kDeviceMemory) - 1
                          : 0;
    } else if (attributes[i] == abi::kPointerIsManaged) {
      *value = managed ? 1 : 0;
    } else {
      return abi::kInvalidValue;
    }
  }
  return 0;
}
abi::Result cuModuleUnload(abi::Module) {
  return 0;
}
abi::Result cuFuncSetAttribute(abi::Function, int, int) {
  FAIL_IF_ASKED();
  ++state.attributes_set;
  return 0;
}
abi::Result cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, abi::Function, int,
                                                        std::size_t) {
  *blocks = 1;
  return 0;
}
abi::Result cuStreamIsCapturing(abi::Stream, int* status) {
  *status = state.capturing;
  return 0;
}
abi::Result cuStreamGetCtx(abi::Stream, abi::Context* context) {
  FAIL_IF_ASKED();
  static abi::ContextHandle foreign{0, 13};
  *context = state.foreign_streams ? &foreign : stack.back();
  return 0;
}
abi::Result cuMemAlloc_v2(abi::DevicePointer* pointer, std::size_t bytes) {
  FAIL_IF_ASKED();
  if (stack.empty()) return 201;
  void* memory = nullptr;
  if (posix_memalign(&memory, 256, bytes) != 0) return abi::kOutOfMemory;
  const std::lock_guard<std::mutex> lock(memory_mutex);
  *pointer = reinterpret_cast<std::uintptr_t>(memory);
  pieces()[*pointer] = {bytes, stack.back()->device};
  ++state.allocations;
  state.allocated_bytes += bytes;
  return 0;
}
abi::Result cuMemFree_v2(abi::DevicePointer pointer) {
  FAIL_IF_ASKED();
  const std::lock_guard<std::mutex> lock(memory_mutex);
  const auto found = pieces().find(pointer);
  if (found == pieces().end()) return abi::kInvalidValue;
  --state.allocations;
  state.allocated_bytes -= found->second.bytes;
  pieces().erase(found);
  std::free(host(pointer));
  return 0;
}
abi::Result cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  *total = std::size_t{80} << 30;
  *free = *total - state.allocated_bytes;
  return 0;
}
abi::Result cuMemcpyHtoDAsync_v2(abi::DevicePointer to, const void* from, std::size_t bytes,
                                 abi::Stream) {
  FAIL_IF_ASKED();
  if (device_of(to) < 0 || device_of(to + bytes - 1) < 0) return abi::kInvalidValue;
  std::memcpy(host(to), from, bytes);
  return 0;
}
abi::Result cuMemcpyDtoHAsync_v2(void* to, abi::DevicePointer from, std::size_t bytes,
                                 abi::Stream) {
  FAIL_IF_ASKED();
  if (device_of(from) < 0 || device_of(from + bytes - 1) < 0) return abi::kInvalidValue;
  std::memcpy(to, host(from), bytes);
  return 0;
}
abi::Result cuStreamCreate(abi::Stream* stream, unsigned) {
  FAIL_IF_ASKED();
  *stream = reinterpret_cast<abi::Stream>(static_cast<std::uintptr_t>(++state.streams) << 8);
  return 0;
}
abi::Result cuStreamSynchronize(abi::Stream) {
  FAIL_IF_ASKED();
  return 0;
}
abi::Result cuStreamDestroy_v2(abi::Stream) {
  --state.streams;
  return 0;
}
abi::Result cuEventCreate(abi::Event* event, unsigned) {
  FAIL_IF_ASKED();
  ++state.events;
  *event = reinterpret_cast<abi::Event>(new int(0));
  return 0;
}
abi::Result cuEventRecord(abi::Event event, abi::Stream) {
  static std::atomic<int> clock = 0;
  *reinterpret_cast<int*>(event) = ++clock;
  return 0;
}
abi::Result cuEventSynchronize(abi::Event) {
  return 0;
}
abi::Result cuEventElapsedTime(float* milliseconds, abi::Event start, abi::Event end) {
  // One millisecond from each recording to the next.
  *milliseconds = static_cast<float>(*reinterpret_cast<int*>(end) - *reinterpret_cast<int*>(start));
  return 0;
}
abi::Result cuEventDestroy_v2(abi::Event event) {
  --state.events;
  delete reinterpret_cast<int*>(event);
  return 0;
}
