// Architectures: facts of a device for each compute capability, for plans and binaries that are
// made where there is no such device, and how many blocks of a kernel fit on a multiprocessor.
#pragma once

#include <string>

#include "cuda/host/device.hpp"

namespace attn::cuda {

// The facts of a common device of that capability (90: an H200); null where none is known. Limits
// as in CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
const DeviceFacts* typical_facts(int capability);
// "80, 86, ...": what typical_facts() knows.
std::string known_capabilities();

}  // namespace attn::cuda
