// Parallel regions of a library that links no OpenMP, such as the one in the Python package.
#pragma once

#include <cstdint>

namespace attn::api {

// A ParallelFor over the OpenMP runtime that the process has loaded (GNU's, LLVM's or Intel's; the
// first of them in the order of loading), whose threads are then shared with those who brought it;
// over threads of our own (workers.hpp) while there is none, and in a forked child on the thread
// that survived. Once a runtime is found it stays.
void loaded_parallel_for(void* user, std::int32_t workers, void (*body)(void*, std::int32_t),
                         void* body_data);

// The file of the runtime that the next call will use; "" when it will use threads of our own.
const char* loaded_openmp_path();

// How many threads of our own were started (in this process, since it was forked).
std::int32_t own_helpers();

}  // namespace attn::api
