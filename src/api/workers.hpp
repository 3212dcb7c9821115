// A thread pool for a library that links no OpenMP, in a process that has none loaded.
#pragma once

#include <atomic>
#include <cstdint>

namespace attn::api {

// Runs one call at a time on the caller and on helper threads, which start when a call first needs
// them and then live as long as the process. Helpers wait spinning for a moment, then asleep. A
// call that finds the helpers at work on another (from a second thread, or from inside a body) runs
// all its workers in its own thread. Objects are never destroyed: helpers would be left without
// theirs.
class Workers {
 public:
  constexpr Workers() = default;

  // Runs body(body_data, worker) once for each worker in [0, workers), and returns when all have.
  // The calling thread runs worker 0.
  void run(std::int32_t workers, void (*body)(void*, std::int32_t), void* body_data);

  // In a forked child: the helpers are gone. No other thread may be using this.
  void forget();

  std::int32_t helpers() const { return helpers_.load(std::memory_order_relaxed); }

 private:
  bool take(std::uint32_t* worker, std::uint32_t* workers);
  void start_helpers(std::int32_t wanted);
  void help();
  void work_as(std::uint32_t worker, std::uint32_t workers);
  void work();
  void wait_for_others(std::uint32_t workers);

  // Which call this is, how many workers it has, and the next one to run: in one word, so that a
  // helper that comes late can't take a worker of a call other than the one it looked at.
  std::atomic<std::uint64_t> state_{0};
  std::atomic<std::uint32_t> done_{0};  // workers of this call that have run
  std::atomic<std::uint32_t> wake_{0};  // counts calls; helpers sleep on it
  std::atomic<std::uint32_t> asleep_{0};
  std::atomic<bool> busy_{false};
  std::atomic<bool> caller_asleep_{false};
  std::atomic<std::int32_t> helpers_{0};
  // Written by the caller before state_, read by those who took a worker.
  void (*body_)(void*, std::int32_t) = nullptr;
  void* body_data_ = nullptr;
};

}  // namespace attn::api
