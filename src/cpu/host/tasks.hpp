// Independent tasks spread over the executor's workers; which worker takes which task never changes
// a result.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "core/backend.hpp"

namespace attn::cpu {

// Calls task(index, worker) for every index in [0, count), in ascending order of start.
template <class Task>
void run_tasks(const core::Executor& executor, std::int64_t count, Task&& task) {
  struct Shared {
    std::atomic<std::int64_t> next{0};
    std::int64_t count;
    Task& task;
  } shared{{}, count, task};
  const auto workers = static_cast<std::int32_t>(
      std::clamp<std::int64_t>(count, 1, std::max<std::int32_t>(executor.threads, 1)));
  executor.parallel_for(
      executor.user, workers,
      [](void* data, std::int32_t worker) {
        Shared& mine = *static_cast<Shared*>(data);
        for (;;) {
          const std::int64_t index = mine.next.fetch_add(1, std::memory_order_relaxed);
          if (index >= mine.count) return;
          mine.task(index, worker);
        }
      },
      &shared);
}

}  // namespace attn::cpu
