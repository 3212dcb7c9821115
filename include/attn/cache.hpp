// The cache of compiled kernels, of backends that compile at run time (CUDA). Kernels are compiled
// by the first call that needs them and kept in a folder (ContextOptions::cache_dir); here they are
// made ahead, on any machine that has the compiler, so that those without one run.
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
  // Compute capabilities, times 10: 80, 90, 120; empty = those of this machine's devices. Where
  // this machine has a device of one, the plans are those of that device, else those of a common
  // one.
  std::vector<std::int32_t> architectures{};
  std::int32_t threads = 0;  // that compile; 0 = one for each processor
};

struct CacheResult {
  std::int64_t binaries = 0;  // that the calls need
  std::int64_t compiled = 0;  // of them; the others were there
  std::int64_t refused = 0;   // calls that no kernel is for, counted for each architecture
  std::string reason{};       // of the first of them
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
// Where they are kept; empty where no folder is known.
ATTN_API std::string cache_folder(Context& context, Device device = Device::cuda);
// Every file of the cache, sorted by path.
ATTN_API std::vector<CacheEntry> cache_list(Context& context, Device device = Device::cuda);
// Removes them; how many there were. Kernels that are loaded stay loaded.
ATTN_API std::int64_t cache_clear(Context& context, Device device = Device::cuda);

}  // namespace attn
