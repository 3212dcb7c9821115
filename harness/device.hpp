// Memory, a stream and timers of a CUDA device, for what runs the library from outside: cases, the
// benchmark, the command. The library itself takes memory and streams from its callers.
#pragma once

#include <attn/attn.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace attn::harness {

// A stream of a device and memory that is used on it. Serves one thread at a time. All functions
// throw Error (unsupported: no such device; out_of_memory; device_error).
class DeviceQueue {
 public:
  // `exact`: every piece of memory is an allocation of its own, of just its size, so that
  // compute-sanitizer sees accesses past its end. Otherwise pieces given back are used again.
  explicit DeviceQueue(std::int32_t ordinal, bool exact = false);
  ~DeviceQueue();  // waits for the work
  DeviceQueue(const DeviceQueue&) = delete;
  DeviceQueue& operator=(const DeviceQueue&) = delete;

  [[nodiscard]] std::int32_t ordinal() const;
  [[nodiscard]] bool exact() const;
  [[nodiscard]] void* stream() const;
  [[nodiscard]] std::string device_name() const;     // "NVIDIA H200"
  [[nodiscard]] std::string driver_version() const;  // "13.0"
  [[nodiscard]] std::int64_t l2_bytes() const;
  [[nodiscard]] std::int64_t free_bytes() const;  // of the device, as the driver counts

  // While what is returned lives, the device is the thread's current one, which the library's
  // answers to questions without tensors are about.
  [[nodiscard]] std::shared_ptr<const void> current() const;

  // At a multiple of 256 bytes; 0 bytes are an address too.
  void* take(std::int64_t bytes);
  void give_back(void* memory);
  // In the order of the stream; the host's memory may be changed or read when they return.
  void upload(void* to, const void* from, std::int64_t bytes);
  void download(void* to, const void* from, std::int64_t bytes);
  void synchronize();

  // Seconds of the host that the driver takes to say of a pointer what the library asks.
  [[nodiscard]] double pointer_seconds(const void* pointer) const;

  // Seconds on the device between `mark`s of the stream: n + 1 marks give n spans. Waits.
  void mark();
  std::vector<double> spans();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// What a process pays once, before its first call; only the first question in a process tells.
struct StartUp {
  double driver = 0.0;           // seconds to open and initialize libcuda
  double context = 0.0;          // to make the device's context
  double compiler = 0.0;         // to open NVRTC and compile an empty kernel
  std::string compiler_version;  // "13.0"
};
// Throws Error where there is no such device or no compiler.
StartUp time_start_up(std::int32_t ordinal);

}  // namespace attn::harness
