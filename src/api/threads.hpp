// Threads of a Context that was given no parallel-for of its own.
#pragma once

#include <cstdint>

namespace attn::api {

// Whether this build has OpenMP.
bool has_openmp();

// A ParallelFor over OpenMP (one worker after the other where there is none). Works in a forked
// child too, and inside the caller's own parallel regions, where it may run on one thread.
void openmp_parallel_for(void* user, std::int32_t workers, void (*body)(void*, std::int32_t),
                         void* body_data);

// To be called before the first parallel region: remembers who survives a fork.
void watch_forks();

// ATTN_NUM_THREADS, else the CPUs of the affinity mask. Throws Error when the variable is no
// number.
std::int32_t default_threads();

}  // namespace attn::api
