// A driver without a device: what tests/cuda steer and see of the library that stands in for
// libcuda.so.1. Memory: [kDeviceMemory * (n + 1), ...) is that of device n, see the ranges below;
// what cuMemAlloc hands out is the process's own memory, which counts as the current device's.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <vector>

namespace attn::cuda::test {

inline constexpr std::uint64_t kDeviceMemory = std::uint64_t{1}
                                               << 40;  // of device 0, of 1 twice it
inline constexpr std::uint64_t kManagedMemory = std::uint64_t{16} << 40;
inline constexpr std::uint64_t kPinnedMemory = std::uint64_t{17} << 40;

// A cubin by its first bytes, which no device takes.
inline constexpr const char* kRefusedImage =
    "\x7f"
    "ELF refused";

// A launch, kept while parameter_bytes says how many bytes its one parameter has.
struct FakeLaunch {
  std::uintptr_t function = 0;
  unsigned blocks = 0;
  unsigned threads = 0;
  unsigned shared_bytes = 0;
  void* stream = nullptr;
  std::vector<unsigned char> parameters;
};

// A tensor map. The encoded map begins with two 64-bit words: the address and the index in `maps`.
struct FakeMap {
  std::uint64_t dims[5] = {};
  std::uint32_t box[5] = {};
  std::uint32_t rank = 0;
  int type = 0;
  int swizzle = 0;
};

struct FakeDriver {
  int version = 13000;
  int num_devices = 2;
  int init_result = 0;
  int major = 9;
  int minor = 0;
  const char* failing = nullptr;  // the function that answers failing_result
  int failing_result = 0;
  std::atomic<int> capturing = 0;  // what cuStreamIsCapturing says

  std::atomic<int> modules_loaded = 0;
  std::atomic<int> contexts_retained = 0;
  std::atomic<int> launches = 0;              // kernels, those of graphs included
  std::atomic<int> graph_launches = 0;        // graphs
  std::atomic<int> graphs_made = 0;           // instantiated
  std::atomic<int> graphs = 0;                // executable ones that are not destroyed yet
  std::atomic<int> misused_graphs = 0;        // used by two threads at once, or after their end
  std::atomic<bool> foreign_streams = false;  // cuStreamGetCtx finds another context
  std::atomic<int> allocations = 0;           // not given back yet
  std::atomic<std::uint64_t> allocated_bytes = 0;  // of cuMemAlloc, not given back yet
  std::atomic<int> streams = 0;                    // not destroyed yet
  std::atomic<int> events = 0;
  std::atomic<int> attributes_set = 0;
  std::atomic<int> attributes_asked = 0;  // of pointers
  std::atomic<int> devices_asked = 0;     // of contexts
  std::size_t parameter_bytes = 0;        // of functions that are not in the next
  std::map<std::uintptr_t, std::size_t> parameter_bytes_of;
  std::vector<FakeMap> maps;
  std::vector<FakeLaunch> launched;
  unsigned grid[3] = {};
  unsigned block[3] = {};
  unsigned shared_bytes = 0;
  void* stream = nullptr;
  unsigned num_attributes = 0;
  unsigned graph_cluster = 0;  // of the last graph node that got one
  int first_attribute = 0;
  std::uint64_t map_dims[5] = {};  // of the last tensor map
  std::uint64_t map_strides[4] = {};
  std::uint32_t map_box[5] = {};
  std::uint32_t map_rank = 0;
  int map_type = 0;
  int map_swizzle = 0;
};

using FakeDriverGetter = FakeDriver* (*)();  // the symbol "attn_fake_driver"

}  // namespace attn::cuda::test
