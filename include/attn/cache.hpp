// The disk cache of backends that compile kernels at run time (CUDA). The first call that needs a
// kernel compiles it and stores it in a folder (ContextOptions::cache_dir). These functions compile
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
  // The calls to compile for.
  std::vector<Call> calls{};
  // Compute capabilities, times 10: 80, 90, 120; empty = those of this machine's devices. Plans
  // assume this machine's device of that capability, or a common device if there is none.
  std::vector<std::int32_t> architectures{};
  std::int32_t threads = 0;  // that compile; 0 = one per processor
};

struct CacheResult {
  std::int64_t binaries = 0;  // number that the calls need
  std::int64_t compiled = 0;  // number compiled now; the others were in the cache
  std::int64_t refused = 0;   // calls without a kernel, counted for each architecture
  std::string reason{};       // why the first one was refused
};

// One file of the cache.
struct CacheEntry {
  std::string path{};
  std::int64_t bytes = 0;
  bool valid = false;          // false: damaged, or of another version; recompiled when needed
  std::string kernel{};        // source and constants; empty if not valid, as are the two below
  std::string architecture{};  // "sm_90a"
  std::string compiler{};      // "13.0"
};

// Compiles the kernels that the cache lacks. Needs no device and no driver. Throws Error:
// unsupported without a compiler, or if all calls were refused; invalid_argument for a problem that
// breaks a rule, an unknown architecture or a folder that can't be written.
ATTN_API CacheResult cache_build(Context& context, const CacheRequest& request,
                                 Device device = Device::cuda);
// The folder of the cache; empty if none is known.
ATTN_API std::string cache_folder(Context& context, Device device = Device::cuda);
// Every file of the cache, sorted by path.
ATTN_API std::vector<CacheEntry> cache_list(Context& context, Device device = Device::cuda);
// Removes every file and returns their number. Loaded kernels stay loaded.
ATTN_API std::int64_t cache_clear(Context& context, Device device = Device::cuda);

}  // namespace attn
