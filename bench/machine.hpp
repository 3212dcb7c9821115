// Machine: the device and the sources that a row was measured on.
#pragma once

#include <string>

#include "bench/cell_run.hpp"

namespace attn::bench {

struct Machine {
  std::string device;  // the processor's name, or the GPU's
  std::string folder;  // the same as a folder name: "intel-xeon-processor-2cpu", "h200"
  // The kernel release, NVIDIA's driver ("580.65.06, CUDA 13.0"), or WebGPU's implementation,
  // graphics API and driver ("wgpu-native 29.0.1.1, vulkan, 580.65.06").
  std::string driver;
  std::string commit;  // of the sources; "-dirty" with changes; "" without git
  std::string date;    // UTC, ISO 8601
};

// Reads /proc/cpuinfo, uname and git.
Machine this_machine(const Opened& opened);

}  // namespace attn::bench
