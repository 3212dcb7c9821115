// A thread pool for a libattn that links no OpenMP, in a process that has loaded none.
#pragma once

#include <atomic>
#include <cstdint>

namespace attn::api {

// Runs one call at a time on the calling thread and on helper threads. Helpers start when a call
// first needs them and live as long as the process. They spin for a moment between calls, then
// sleep. If the helpers are busy with another call (from a second thread, or from inside a body), a
// call runs all its workers on its own thread. An object must never be destroyed, because helpers
// keep using it.
class Workers {
 public:
  constexpr Workers() = default;

  // Runs body(body_data, worker) once for each worker in [0, workers), and returns when all have.
  // The calling thread runs worker 0.
  void run(std::int32_t workers, void (*body)(void*, std::int32_t), void* body_data);

  // For a forked child, which does not inherit the helpers. No other thread may use the object.
  void forget();

  std::int32_t helpers() const { return helpers_.load(std::memory_order_relaxed); }

 private:
  bool take(std::uint32_t* worker, std::uint32_t* workers);
  void start_helpers(std::int32_t wanted);
  void help();
  void work_as(std::uint32_t worker, std::uint32_t workers);
  void work();
  void wait_for_others(std::uint32_t workers);

  // The number of the call, its number of workers and the next worker, in one word, so that a late
  // helper can't take a worker of another call than the one it has read.
  std::atomic<std::uint64_t> state_{0};
  std::atomic<std::uint32_t> done_{0};  // workers of this call that have run
  std::atomic<std::uint32_t> wake_{0};  // counts calls; helpers sleep on it
  std::atomic<std::uint32_t> asleep_{0};
  std::atomic<bool> busy_{false};
  std::atomic<bool> caller_asleep_{false};
  std::atomic<std::int32_t> helpers_{0};
  // The caller writes these before state_. A thread reads them after it took a worker.
  void (*body_)(void*, std::int32_t) = nullptr;
  void* body_data_ = nullptr;
};

}  // namespace attn::api
