// Buffers, recordings and a clock of a WebGPU device, for the benchmark: calls as an engine makes
// them, on tensors that stay on the device.
#pragma once

#include <attn/attn.hpp>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace attn::harness {

class WebgpuCalls;

// The process's device, see docs/webgpu.md. Serves one thread at a time. All functions throw Error
// (unsupported: no such device; out_of_memory; device_error).
class WebgpuQueue {
 public:
  WebgpuQueue();
  ~WebgpuQueue();
  WebgpuQueue(const WebgpuQueue&) = delete;
  WebgpuQueue& operator=(const WebgpuQueue&) = delete;

  [[nodiscard]] std::string device_name() const;  // "NVIDIA H200"
  [[nodiscard]] std::string driver() const;       // "wgpu-native 29.0.1.1, vulkan, 580.65.06"

  // More than the device's caches hold, as far as known: four times the L2 of large GPUs. 0 on a
  // CPU, where what is measured is not memory.
  [[nodiscard]] std::int64_t uncached_bytes() const;

  // Keeps the device busy until its clocks are up: until it multiplies and adds about as fast as it
  // ever has in this process, or 3 seconds are over.
  void warm_up();

  // Seconds for the last call of each of `turns`, one after the other: between timestamps of the
  // device where it has them, else of the host from submitting to the end of the last. All is
  // recorded before anything is submitted.
  double seconds(std::span<const WebgpuCalls* const> turns);

 private:
  friend class WebgpuCalls;
  struct State;
  std::unique_ptr<State> state_;
};

// Calls on one set of tensors, which are copied from the host: a forward and its backward, say.
class WebgpuCalls {
 public:
  // Plans, compiles, uploads.
  WebgpuCalls(WebgpuQueue& queue, const Arguments& host,
              const std::vector<std::pair<Pass, Problem>>& calls);
  ~WebgpuCalls();
  WebgpuCalls(const WebgpuCalls&) = delete;
  WebgpuCalls& operator=(const WebgpuCalls&) = delete;

  void run();                                      // each call once, in order
  void download();                                 // what they write, to the host, after waiting
  [[nodiscard]] std::int64_t bytes() const;        // of the tensors
  [[nodiscard]] std::int64_t extra_bytes() const;  // that the last call works in beside them

 private:
  friend class WebgpuQueue;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace attn::harness
