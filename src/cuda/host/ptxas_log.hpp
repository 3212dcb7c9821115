// What the assembler says of compiled kernels: registers, spills, and notes that wgmma was
// serialized or setmaxnreg ignored. Read from the log of Nvrtc::compile; needs no device.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace attn::cuda {

struct Resources {
  std::string entry;
  int registers = 0;     // of a thread at launch
  int stack_bytes = 0;   // of a thread: the largest frame of the kernel and the functions it calls
  int spill_stores = 0;  // bytes, of the kernel and the functions it calls
  int spill_loads = 0;
  int shared_bytes = 0;  // static, of a block
  bool operator==(const Resources&) const = default;
};

struct ResourceReport {
  std::vector<Resources> kernels;
  std::vector<std::string> notes;  // C7504 to C7517: each costs speed
  bool operator==(const ResourceReport&) const = default;
};

ResourceReport read_resources(std::string_view log);

}  // namespace attn::cuda
