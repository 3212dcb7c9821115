// Interrupt: whether the caller wants a running call to end before it is done (attn::ShouldStop).
#pragma once

#include <time.h>

#include <atomic>
#include <attn/context.hpp>
#include <chrono>
#include <thread>

namespace attn::core {

// One per call. poll() is one relaxed load, on the calling thread also a read of the coarse clock
// (5 ns, in steps of 1 to 4 ms; the fine clock takes 25 to 150 ns). Poll every 10 us to 10 ms.
class Interrupt {
 public:
  // should_stop first runs after this time, so short calls never run it.
  static constexpr std::chrono::milliseconds kInterval{20};

  // Only the thread that constructs the object runs should_stop.
  Interrupt(ShouldStop should_stop, void* user)
      : should_stop_(should_stop), user_(user), caller_(std::this_thread::get_id()) {}

  // Whether to stop. Once true, it stays true for every thread.
  bool poll() {
    if (stopped()) return true;
    return is_caller() && ask();
  }
  [[nodiscard]] bool stopped() const { return stopped_.load(std::memory_order_relaxed); }
  [[nodiscard]] bool is_caller() const { return std::this_thread::get_id() == caller_; }
  // Whether the call has run for longer than kInterval. Only for the calling thread.
  [[nodiscard]] bool is_long() const { return asked_; }

 private:
  // Time since an arbitrary fixed point.
  static std::chrono::nanoseconds now() {
#if defined(CLOCK_MONOTONIC_COARSE)
    timespec time{};
    clock_gettime(CLOCK_MONOTONIC_COARSE, &time);
    return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
#else
    return std::chrono::steady_clock::now().time_since_epoch();
#endif
  }

  bool ask() {
    const std::chrono::nanoseconds time = now();
    if (next_ == next_.zero()) next_ = time + kInterval;
    if (time < next_) return false;
    asked_ = true;
    if (should_stop_(user_) != 0) stopped_.store(true, std::memory_order_relaxed);
    next_ = now() + kInterval;
    return stopped();
  }

  const ShouldStop should_stop_;
  void* const user_;
  const std::thread::id caller_;
  std::atomic<bool> stopped_{false};
  // Only the calling thread uses these.
  std::chrono::nanoseconds next_{0};
  bool asked_ = false;
};

// Whether the call must end. Null: the call can't be interrupted.
inline bool interrupted(Interrupt* interrupt) {
  return interrupt != nullptr && interrupt->poll();
}

}  // namespace attn::core
