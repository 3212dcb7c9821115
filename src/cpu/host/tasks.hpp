// Spreads independent tasks over the executor's workers. Which worker runs a task never changes a
// result.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#include "core/backend.hpp"
#include "cpu/host/flush_subnormals.hpp"

namespace attn::cpu {

// The calling thread waits here, not in parallel_for, for the tasks of other workers. It polls for
// interrupts while it waits, so that a long call can be interrupted. Sleeps for 1/16 of the time
// waited so far, at most 1 ms.
inline void wait_for_tasks(core::Interrupt& interrupt, const std::atomic<std::int64_t>& done,
                           std::int64_t count) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  while (done.load(std::memory_order_relaxed) < count && !interrupt.poll()) {
    std::this_thread::sleep_for(
        std::min<Clock::duration>((Clock::now() - begin) / 16, std::chrono::milliseconds(1)));
  }
}

// Calls task(index, worker) for every index in [0, count). Tasks start in ascending order. An
// interrupted call starts no further task.
template <class Task>
void run_tasks(const core::Executor& executor, std::int64_t count, Task&& task) {
  if (core::interrupted(executor.interrupt)) return;
  struct Shared {
    std::atomic<std::int64_t> next{0};
    std::atomic<std::int64_t> done{0};
    std::int64_t count;
    core::Interrupt* interrupt;
    Task& task;
  } shared{{}, {}, count, executor.interrupt, task};
  const auto workers = static_cast<std::int32_t>(
      std::clamp<std::int64_t>(count, 1, std::max<std::int32_t>(executor.threads, 1)));
  executor.parallel_for(
      executor.user, workers,
      [](void* data, std::int32_t worker) {
        Shared& mine = *static_cast<Shared*>(data);
        core::Interrupt* interrupt = mine.interrupt;
        const FlushSubnormals flush;
        while (!core::interrupted(interrupt)) {
          const std::int64_t index = mine.next.fetch_add(1, std::memory_order_relaxed);
          if (index >= mine.count) break;
          mine.task(index, worker);
          if (interrupt != nullptr) mine.done.fetch_add(1, std::memory_order_relaxed);
        }
        // This wait ends: each of the remaining tasks is already running on a thread.
        if (interrupt != nullptr && interrupt->is_caller() && interrupt->is_long()) {
          wait_for_tasks(*interrupt, mine.done, mine.count);
        }
      },
      &shared);
}

}  // namespace attn::cpu
