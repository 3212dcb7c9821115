// Counts what operator new gives out, in this test program.
#pragma once

#include <cstdint>

namespace attn::test {

struct Allocations {
  std::int64_t count = 0;
  std::int64_t bytes = 0;  // requested
};

// Since the start of the program, all threads. Always 0 under the thread sanitizer.
Allocations allocations();

}  // namespace attn::test
