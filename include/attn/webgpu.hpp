// Attention on an engine's own WebGPU device: its buffers, its encoder, its queue. No header of
// WebGPU is needed; handles are those of webgpu.h as void*.
//
//   auto device = attn::webgpu::adopt({.device = wgpu_device, .queue = wgpu_queue});
//   attn::Arguments a;
//   a.q = ...;  // TensorView: data = WGPUBuffer, offset_bytes, device = Device::webgpu
//   attn::webgpu::Recording call(device, attn::Pass::forward, attn::describe(a), a);
//   call.use(scratch);  // four ranges of the engine's buffers, as large as call.needs() says
//   for (int chunk = 0; chunk < call.num_chunks(); ++chunk) call.record(chunk, encoder);
//
// Functions throw attn::Error: on bad input, before anything is recorded; and device_error with the
// WebGPU implementation's message if it reports an error or the device was lost.
#pragma once

#include <attn/export.h>

#include <attn/arguments.hpp>
#include <attn/problem.hpp>
#include <cstdint>
#include <memory>
#include <string>

namespace attn::webgpu {

// A WebGPU device with its compiled kernels. Many threads may use it at once.
class Device;

// Handles of the engine. libattn keeps references to device and queue while its Device lives.
struct Handles {
  void* device = nullptr;  // WGPUDevice
  void* queue = nullptr;   // WGPUQueue; null: the device's default queue
  // WGPUAdapter; wgpu-native reads the device's name and kind from it. Without it, chunks are sized
  // for the slowest device, so a fast one is partly idle.
  void* adapter = nullptr;
  void* instance = nullptr;  // WGPUInstance, owned by the engine; Dawn needs it to wait
  // Returns the function of webgpu.h with this name, from the library that created the device.
  // null: libattn looks in the libraries that the process has loaded.
  void* (*lookup)(const char* name) = nullptr;
};
// Queries the features of the device and measures the speed of a GPU: submits a few dispatches that
// take some milliseconds in total, and waits for them. libattn runs without subgroups, shader-f16
// and larger limits if the engine did not request them when it created the device.
ATTN_API std::shared_ptr<Device> adopt(const Handles& handles);

// "NVIDIA H200 (vulkan, discrete, 48 KiB, subgroups of 32, f16)"
ATTN_API std::string describe(const Device& device);

// A range of a WGPUBuffer. `offset` is a multiple of 256.
struct Range {
  void* buffer = nullptr;  // WGPUBuffer
  std::uint64_t offset = 0;
  std::uint64_t size = 0;
};

// Scratch memory of a call, in four different buffers: a WebGPU dispatch can't read and write the
// same one. Contents are undefined before and after. Calls with ordered submissions may share it,
// except `parameters`: each call needs its own slice until it has run.
struct Scratch {
  Range info{};        // usage Storage
  Range prepared{};    // usage Storage
  Range staged{};      // usage Storage
  Range parameters{};  // usage Uniform | Storage | CopyDst
};
struct Needs {  // bytes
  std::uint64_t info = 0;
  std::uint64_t prepared = 0;
  std::uint64_t staged = 0;
  std::uint64_t parameters = 0;
};

// A checked and planned call, for recording into command encoders any number of times.
class Recording {
 public:
  // Compiles what is not compiled yet. `device` stays alive with the recording.
  ATTN_API Recording(std::shared_ptr<Device> device, Pass pass, const Problem& problem,
                     const Arguments& arguments);
  ATTN_API Recording(std::shared_ptr<Device> device, const MergeArguments& arguments);
  ATTN_API Recording(std::shared_ptr<Device> device, const MergeBackwardArguments& arguments);
  ATTN_API Recording(std::shared_ptr<Device> device, const RopeArguments& arguments);
  ATTN_API ~Recording();
  ATTN_API Recording(Recording&&) noexcept;
  ATTN_API Recording& operator=(Recording&&) noexcept;

  [[nodiscard]] ATTN_API Needs needs() const;
  // Sets the scratch memory and writes the parameters with wgpuQueueWriteBuffer, so that they are
  // in place for later submissions.
  ATTN_API void use(const Scratch& scratch);

  // Chunks of at most about 100 ms. Record them in order, into one encoder or several.
  [[nodiscard]] ATTN_API int num_chunks() const;
  // One compute pass into `encoder` (a WGPUCommandEncoder without an open pass). Allocates no
  // buffer and submits nothing.
  ATTN_API void record(int chunk, void* encoder) const;
  // Records and submits all chunks, in one or more submissions, to the device's queue.
  // Does not wait.
  ATTN_API void submit() const;

  class State;  // internal

 private:
  std::unique_ptr<State> state_;
};

}  // namespace attn::webgpu
