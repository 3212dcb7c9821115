// Parses what ptxas reports of compiled kernels in the log of Nvrtc::compile: registers, spills,
// and warnings that wgmma was serialized or setmaxnreg ignored. Needs no device.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace attn::cuda {

struct Resources {
  std::string entry;
  int registers = 0;     // per thread, at launch
  int stack_bytes = 0;   // per thread: the largest frame of the kernel and the functions it calls
  int spill_stores = 0;  // bytes per thread, of the kernel and the functions it calls
  int spill_loads = 0;
  int shared_bytes = 0;  // static, per block
  bool operator==(const Resources&) const = default;
};

struct ResourceReport {
  std::vector<Resources> kernels;
  std::vector<std::string> notes;  // warnings C7504 to C7517, each costs performance
  bool operator==(const ResourceReport&) const = default;
};

ResourceReport read_resources(std::string_view log);

}  // namespace attn::cuda
