// Parallel regions of contexts without a parallel_for of the caller, and their handling of forks.
// The build option ATTN_OPENMP selects the linked OpenMP, one that the process has loaded, or none.
//
// libgomp keeps a pool of threads for each thread that opened a region. After a fork the child has
// one thread, and its pool still refers to threads that no longer exist: its next region would
// never end. A new thread has no pool yet. So in a child, the surviving thread opens its regions
// from a new thread and runs worker 0 itself. libomp recovers from a fork by itself and works with
// the new thread too.
#include <algorithm>
#include <atomic>
#include <attn/context.hpp>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>

#include "api/threads.hpp"
#include "core/backend.hpp"
#include "platform/platform.hpp"

#if defined(ATTN_OPENMP_LOADED)
#include "api/loaded_openmp.hpp"
#elif defined(_OPENMP)
#include <omp.h>
#endif

namespace attn::api {

namespace {

// is_survivor: this is the thread that called fork. All other threads of the child are new.
std::atomic<bool> in_child{false};
thread_local bool is_survivor = false;

void after_fork_in_child() {
  is_survivor = true;
  in_child.store(true, std::memory_order_release);
}

#ifndef ATTN_OPENMP_LOADED
void run_one_by_one(std::int32_t workers, void (*body)(void*, std::int32_t), void* body_data) {
  for (std::int32_t worker = 0; worker < workers; ++worker) body(body_data, worker);
}
#endif

#if defined(_OPENMP) && !defined(ATTN_OPENMP_LOADED)
void run_region(std::int32_t workers, void (*body)(void*, std::int32_t), void* body_data) {
#pragma omp parallel num_threads(workers)
  {
    // The team may be smaller than requested, down to one thread in a nested region.
    for (std::int32_t worker = omp_get_thread_num(); worker < workers;
         worker += omp_get_num_threads()) {
      body(body_data, worker);
    }
  }
}

// Runs worker 0 on this thread, and the others in a region that a new thread opens.
void run_region_of_new_thread(std::int32_t workers, void (*body)(void*, std::int32_t),
                              void* body_data) {
  struct Others {
    void (*body)(void*, std::int32_t);
    void* body_data;
  } others{body, body_data};
  const auto run_other = [](void* data, std::int32_t worker) {
    const Others& them = *static_cast<const Others*>(data);
    them.body(them.body_data, worker + 1);
  };
  std::thread opener;
  try {
    opener = std::thread(run_region, workers - 1, run_other, &others);
  } catch (const std::system_error&) {
    return run_one_by_one(workers, body, body_data);
  }
  body(body_data, 0);
  opener.join();
}
#endif

}  // namespace

void watch_forks() {
  static std::once_flag once;
  std::call_once(once, [] { platform::at_fork_in_child(after_fork_in_child); });
}

bool survived_a_fork() {
  return in_child.load(std::memory_order_acquire) && is_survivor;
}

#if defined(ATTN_OPENMP_LOADED)
bool has_threads() {
  return true;
}

void default_parallel_for(void* user, std::int32_t workers, void (*body)(void*, std::int32_t),
                          void* body_data) {
  loaded_parallel_for(user, workers, body, body_data);
}
#elif defined(_OPENMP)
bool has_threads() {
  return true;
}

void default_parallel_for(void*, std::int32_t workers, void (*body)(void*, std::int32_t),
                          void* body_data) {
  if (workers <= 1) return run_one_by_one(workers, body, body_data);
  if (survived_a_fork()) return run_region_of_new_thread(workers, body, body_data);
  run_region(workers, body, body_data);
}
#else
bool has_threads() {
  return false;
}

void default_parallel_for(void*, std::int32_t workers, void (*body)(void*, std::int32_t),
                          void* body_data) {
  run_one_by_one(workers, body, body_data);
}
#endif

std::int32_t default_threads() {
  if (const char* text = std::getenv("ATTN_NUM_THREADS"); text != nullptr && *text != '\0') {
    std::int32_t threads = 0;
    const char* end = text + std::strlen(text);
    const auto result = std::from_chars(text, end, threads);
    if (result.ec != std::errc{} || result.ptr != end || threads < 1 ||
        threads > core::kMaxThreads) {
      throw Error(ErrorCode::invalid_argument,
                  "Context: ATTN_NUM_THREADS: found '" + std::string(text) +
                      "'; accepted a whole number, 1 to " + std::to_string(core::kMaxThreads));
    }
    return threads;
  }
  std::int32_t threads = platform::usable_processors();
  if (threads == 0) threads = static_cast<std::int32_t>(std::thread::hardware_concurrency());
  return std::clamp<std::int32_t>(threads, 1, core::kMaxThreads);
}

}  // namespace attn::api
