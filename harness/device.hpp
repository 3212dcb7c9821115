// Memory, a stream and timers of a CUDA device for the library's callers: cases, benchmark,
// command. The library itself receives memory and streams from its callers.
#pragma once

#include <attn/attn.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace attn::harness {

// A stream of a device and memory used on it. One thread at a time may use it. All functions throw
// Error (unsupported: no such device; out_of_memory; device_error).
class DeviceQueue {
 public:
  // `exact`: every block is a separate allocation of exactly its size, so compute-sanitizer detects
  // accesses past its end. Otherwise freed blocks are reused.
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
  [[nodiscard]] std::int64_t free_bytes() const;  // as reported by the driver

  // While the returned object lives, the device is current in this thread. The library's answers to
  // queries without tensors are about the current device.
  [[nodiscard]] std::shared_ptr<const void> current() const;

  // Aligned to 256 bytes; 0 bytes also give an address.
  void* take(std::int64_t bytes);
  void give_back(void* memory);
  // Ordered on the stream. When they return, the host memory may be changed or read.
  void upload(void* to, const void* from, std::int64_t bytes);
  void download(void* to, const void* from, std::int64_t bytes);
  void synchronize();

  // Host seconds per pointer query that the library sends to the driver.
  [[nodiscard]] double pointer_seconds(const void* pointer) const;

  // Device seconds between consecutive `mark`s of the stream: n + 1 marks give n spans. Waits.
  void mark();
  std::vector<double> spans();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Start-up costs of a process. Only the first query in a process measures them.
struct StartUp {
  double driver = 0.0;           // seconds to open and initialize libcuda
  double context = 0.0;          // to create the device's context
  double compiler = 0.0;         // to open NVRTC and compile an empty kernel
  std::string compiler_version;  // "13.0"
};
// Throws Error if the device or the compiler does not exist.
StartUp time_start_up(std::int32_t ordinal);

}  // namespace attn::harness
