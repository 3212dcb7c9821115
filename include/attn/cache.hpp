// The cache of kernels of backends that compile at run time (CUDA). The first call that needs a
// kernel compiles it and keeps it in a folder (ContextOptions::cache_dir). These functions compile
// ahead of time, on any machine with the compiler, for machines without one.
#pragma once

#include <attn/export.h>

#include <attn/context.hpp>
#include <attn/problem.hpp>
#include <cstdint>
#include <string>
#include <vector>

namespace attn {

struct CacheRequest {
  struct Call {
    Pass pass = Pass::forward;
    Problem problem{};
  };
  // What will be called.
  std::vector<Call> calls{};
  // Compute capabilities, times 10: 80, 90, 120; empty = those of this machine's devices. Plans
  // are those of this machine's device of that capability, or of a common device if it has none.
  std::vector<std::int32_t> architectures{};
  std::int32_t threads = 0;  // of the compilation; 0 = one per processor
};

struct CacheResult {
  std::int64_t binaries = 0;  // that the calls need
  std::int64_t compiled = 0;  // in this build; the others were in the cache
  std::int64_t refused = 0;   // calls without a kernel, counted for each architecture
  std::string reason{};       // why the first one was refused
};

// One file of the cache.
struct CacheEntry {
  std::string path{};
  std::int64_t bytes = 0;
  bool valid = false;          // false: damaged, or of another version; rebuilt when it is needed
  std::string kernel{};        // source and constants; empty where not valid, like the two below
  std::string architecture{};  // "sm_90a"
  std::string compiler{};      // "13.0"
};

// Compiles what is not there yet. Needs no device and no driver. Throws Error: unsupported without
// a compiler, or where all calls were refused; invalid_argument for a problem that breaks a rule,
// an architecture that is not known and a folder that can't be written.
ATTN_API CacheResult cache_build(Context& context, const CacheRequest& request,
                                 Device device = Device::cuda);
// The folder of the cache; empty where none is known.
ATTN_API std::string cache_folder(Context& context, Device device = Device::cuda);
// Every file of the cache, sorted by path.
ATTN_API std::vector<CacheEntry> cache_list(Context& context, Device device = Device::cuda);
// Removes every file and returns their number. Loaded kernels stay loaded.
ATTN_API std::int64_t cache_clear(Context& context, Device device = Device::cuda);

}  // namespace attn
