// Facts of real devices, as the driver tells them: what plans are tested against without a device.
#pragma once

#include <vector>

#include "cuda/host/architectures.hpp"

namespace attn::cuda::test {

inline DeviceFacts h200() {
  return *typical_facts(90);
}

// One of each size of shared memory that there is since 8.0.
inline std::vector<DeviceFacts> devices() {
  return {h200(), *typical_facts(80), *typical_facts(86), *typical_facts(120)};
}

}  // namespace attn::cuda::test
