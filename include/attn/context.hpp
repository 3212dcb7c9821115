// Context: threads, memory pool and caches of a caller. One Context may serve many threads at once.
#pragma once

#include <attn/export.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

namespace attn {

enum class ErrorCode : std::int32_t {
  ok = 0,
  invalid_argument = 1,  // the input breaks a rule; the message names it
  unsupported = 2,       // valid, but no usable backend supports it; the message says why
  out_of_memory = 3,
  device_error = 4,  // a call of a driver or runtime failed; the message names it
  internal = 5,      // a bug in libattn
  interrupted = 6,   // Arguments::should_stop ended the call; its outputs are unspecified
};
ATTN_API const char* to_string(ErrorCode code);

class ATTN_API Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  [[nodiscard]] ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

// Runs body(body_data, worker) once for every worker in [0, workers) and returns when all have
// returned. It may use any order and any threads, even one thread for all workers.
using ParallelFor = void (*)(void* user, std::int32_t workers,
                             void (*body)(void* body_data, std::int32_t worker), void* body_data);

// Returns a value other than 0 to end the running call. See Arguments::should_stop.
using ShouldStop = std::int32_t (*)(void* user);

struct ContextOptions {
  // Threads of the CPU backend; 0 = ATTN_NUM_THREADS, else one per processor that the process may
  // run on.
  std::int32_t threads = 0;
  // Runs workers on several threads; null = OpenMP: linked, or the runtime that the process has
  // loaded, else libattn's own threads. A build with ATTN_OPENMP=OFF runs one thread.
  ParallelFor parallel_for = nullptr;
  void* parallel_for_user = nullptr;
  // Name of the one backend to use ("cpu", "reference", "cuda", "webgpu"); empty = by device.
  std::string backend{};
  // Scratch memory kept between calls, in bytes; larger blocks are freed after the call.
  std::int64_t pool_bytes = std::int64_t{256} << 20;
  // Where compiled kernels are kept; empty = ATTN_CACHE_DIR, else the user's cache folder.
  std::string cache_dir{};
};

class Context {
 public:
  ATTN_API explicit Context(const ContextOptions& options = {});
  ATTN_API ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  [[nodiscard]] ATTN_API std::int32_t threads() const;

  class State;  // internal
  [[nodiscard]] State& state() const { return *state_; }

 private:
  std::unique_ptr<State> state_;
};

}  // namespace attn
