// Buffers, recordings and a clock of a WebGPU device for the benchmark: calls like an engine's, on
// tensors that stay on the device.
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

// The process's device, see docs/webgpu.md. One thread at a time may use it. All functions throw
// Error (unsupported: no such device; out_of_memory; device_error).
class WebgpuQueue {
 public:
  WebgpuQueue();
  ~WebgpuQueue();
  WebgpuQueue(const WebgpuQueue&) = delete;
  WebgpuQueue& operator=(const WebgpuQueue&) = delete;

  [[nodiscard]] std::string device_name() const;  // "NVIDIA H200"
  [[nodiscard]] std::string driver() const;       // "wgpu-native 29.0.1.1, vulkan, 580.65.06"

  // Bytes that exceed the device's caches: four times the L2 of large GPUs. 0 on a CPU, where
  // memory is not measured.
  [[nodiscard]] std::int64_t uncached_bytes() const;

  // Keeps the device busy until its clocks are high: until its multiply-add rate is close to the
  // best seen in this process, or for 3 seconds.
  void warm_up();

  // Seconds for the last call of each of `turns`, run in order: between device timestamps, or host
  // time from submission to completion if the device has none. Everything is recorded before the
  // first submission.
  double seconds(std::span<const WebgpuCalls* const> turns);

 private:
  friend class WebgpuCalls;
  struct State;
  std::unique_ptr<State> state_;
};

// Calls on one set of tensors copied from the host, for example a forward and its backward.
class WebgpuCalls {
 public:
  // Plans, compiles, uploads.
  WebgpuCalls(WebgpuQueue& queue, const Arguments& host,
              const std::vector<std::pair<Pass, Problem>>& calls);
  ~WebgpuCalls();
  WebgpuCalls(const WebgpuCalls&) = delete;
  WebgpuCalls& operator=(const WebgpuCalls&) = delete;

  void run();                                      // each call once, in order
  void download();                                 // waits and copies the outputs to the host
  [[nodiscard]] std::int64_t bytes() const;        // size of the tensors
  [[nodiscard]] std::int64_t extra_bytes() const;  // scratch memory of the last call

 private:
  friend class WebgpuQueue;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace attn::harness
