// Threads of a Context that was given no parallel-for of its own.
#pragma once

#include <cstdint>

namespace attn::api {

// Whether this build has threads of any kind.
bool has_threads();

// The ParallelFor of this build (one worker after the other where it has no threads). Works in a
// forked child too, and inside the caller's own parallel regions, where it may run on one thread.
void default_parallel_for(void* user, std::int32_t workers, void (*body)(void*, std::int32_t),
                          void* body_data);

// To be called before the first parallel region: remembers who survives a fork.
void watch_forks();

// Whether this is the thread that called fork, in the child.
bool survived_a_fork();

// ATTN_NUM_THREADS, else the CPUs of the affinity mask. Throws Error when the variable is no
// number.
std::int32_t default_threads();

}  // namespace attn::api
