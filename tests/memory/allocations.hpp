// Counts the bytes that the process holds through malloc and its relatives: current and peak since
// the last reset. The overrides are in allocations.cpp.
#pragma once

#include <cstdint>

namespace attn::memory {

// Bytes and calls of all threads between start() and stop().
struct Usage {
  std::int64_t peak_bytes = 0;  // peak increase over the bytes held at start()
  std::int64_t calls = 0;
};
void start();
Usage stop();

}  // namespace attn::memory
