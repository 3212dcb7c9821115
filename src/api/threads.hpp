// Threads of contexts without a parallel_for of the caller.
#pragma once

#include <cstdint>

namespace attn::api {

// Whether this build can run on several threads.
bool has_threads();

// The default ParallelFor (in a build without threads, it runs the workers in turn). Also works in
// a forked child, and inside parallel regions of the caller, where it may run on one thread.
void default_parallel_for(void* user, std::int32_t workers, void (*body)(void*, std::int32_t),
                          void* body_data);

// Must be called before the first parallel region. Makes survived_a_fork() work.
void watch_forks();

// Whether this is a forked child, and this thread is the one that called fork.
bool survived_a_fork();

// ATTN_NUM_THREADS, else the CPUs of the affinity mask. Throws Error if the variable is not a
// valid number.
std::int32_t default_threads();

}  // namespace attn::api
