// Limits: how much one dispatch and one submission may do on a device.
#pragma once

#include "webgpu/host/device.hpp"

namespace attn::webgpu {

// A submission stays under about 100 ms, so that a desktop goes on and no watchdog (about 2 s on
// Windows) resets the device: rates that the slowest of each kind reach.
inline double flops_per_submission(const DeviceFacts& facts) {
  constexpr double kSeconds = 0.1;
  switch (facts.type) {
    case AdapterType::discrete: return 2e12 * kSeconds;
    case AdapterType::integrated: return 1e11 * kSeconds;
    default: return 2e9 * kSeconds;
  }
}

}  // namespace attn::webgpu
