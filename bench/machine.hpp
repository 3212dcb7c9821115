// Machine: what a row says about where and from which sources it was measured.
#pragma once

#include <string>

#include "cases/device.hpp"

namespace attn::bench {

struct Machine {
  std::string device;  // the processor's name, or the GPU's
  std::string folder;  // the same as a folder name: "intel-xeon-processor-2cpu", "h200"
  std::string driver;  // the kernel release, or that of NVIDIA's driver: "580.65.06, CUDA 13.0"
  std::string commit;  // of the sources; "-dirty" with changes; "" without git
  std::string date;    // UTC, ISO 8601
};

// Reads /proc/cpuinfo, uname and git; null: the host.
Machine this_machine(const cases::DeviceQueue* device);

}  // namespace attn::bench
