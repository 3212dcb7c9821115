// Facts of real devices, as the driver tells them: what plans are tested against without a device.
#pragma once

#include <vector>

#include "cuda/host/device.hpp"

namespace attn::cuda::test {

inline DeviceFacts facts_of(const char* name, int capability, int sms, int threads_per_sm,
                            std::int64_t shared_per_sm) {
  DeviceFacts facts;
  facts.name = name;
  facts.major = capability / 10;
  facts.minor = capability % 10;
  facts.num_sms = sms;
  facts.registers_per_sm = 65536;
  facts.threads_per_sm = threads_per_sm;
  facts.shared_per_sm = shared_per_sm;
  facts.shared_per_block = shared_per_sm - 1024;
  facts.memory_bytes = std::int64_t{140} << 30;
  return facts;
}

inline DeviceFacts h200() {
  return facts_of("NVIDIA H200", 90, 132, 2048, 228 << 10);
}

// One of each size of shared memory that there is since 8.0.
inline std::vector<DeviceFacts> devices() {
  return {h200(), facts_of("NVIDIA A100", 80, 108, 2048, 164 << 10),
          facts_of("NVIDIA A10", 86, 72, 1536, 100 << 10),
          facts_of("NVIDIA GeForce RTX 5090", 120, 170, 1536, 100 << 10)};
}

}  // namespace attn::cuda::test
