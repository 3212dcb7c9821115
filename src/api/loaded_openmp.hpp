// Parallel regions for a libattn that links no OpenMP, such as the one in the Python package.
#pragma once

#include <cstdint>

namespace attn::api {

// A ParallelFor on the threads of the first OpenMP runtime that the process has loaded (GNU's,
// LLVM's or Intel's), so that libattn shares them with the other users of that runtime. A runtime
// that was found once is used for good. libattn's own threads (workers.hpp) are used instead while
// there is no runtime, and in a forked child on the thread that called fork.
void loaded_parallel_for(void* user, std::int32_t workers, void (*body)(void*, std::int32_t),
                         void* body_data);

// The file of the runtime that the next call will use; "" if it will use libattn's own threads.
const char* loaded_openmp_path();

// How many of libattn's own threads were started in this process (since it was forked).
std::int32_t own_helpers();

}  // namespace attn::api
