// Counts the bytes that the process holds through malloc and its relatives: live now, and the most
// since the last reset. The overrides are in allocations.cpp.
#pragma once

#include <cstdint>

namespace attn::memory {

// Bytes and calls since start() up to stop(), of every thread.
struct Usage {
  std::int64_t peak_bytes = 0;  // the most held at once beyond what was held at start()
  std::int64_t calls = 0;
};
void start();
Usage stop();

}  // namespace attn::memory
