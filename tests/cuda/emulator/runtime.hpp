// A launch of a translated kernel.
#pragma once

#include "ptx.hpp"

namespace emulator {

struct Launch {
  const char* name;
  unsigned grid_x, grid_y, grid_z;
  unsigned threads;
  unsigned cluster;  // blocks along x
  unsigned shared_bytes;
  void (*call)(void*);
  void* parameter;
};
// Runs every block of the kernel and all its copies. One launch at a time.
void run(const Launch& launch);

}  // namespace emulator
