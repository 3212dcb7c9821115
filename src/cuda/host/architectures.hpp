// Architectures: facts of a device for each compute capability, for plans and binaries that are
// made on a machine without such a device.
#pragma once

#include <string>

#include "cuda/host/device.hpp"

namespace attn::cuda {

// The facts of a common device of that capability (90: an H200); null if none is known. Limits are
// from CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
const DeviceFacts* typical_facts(int capability);
// The capabilities that typical_facts() knows: "80, 86, ...".
std::string known_capabilities();

}  // namespace attn::cuda
