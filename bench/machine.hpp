// Machine: what a row says about where and from which sources it was measured.
#pragma once

#include <string>

namespace attn::bench {

struct Machine {
  std::string device;  // the processor's name
  std::string folder;  // the same as a folder name: "intel-xeon-processor-2cpu"
  std::string driver;  // the kernel release
  std::string commit;  // of the sources; "-dirty" with changes; "" without git
  std::string date;    // UTC, ISO 8601
};

// Reads /proc/cpuinfo, uname and git.
Machine this_machine();

}  // namespace attn::bench
