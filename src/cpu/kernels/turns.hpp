// Waits between the tasks of one step. Every wait ends if the call is interrupted.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

#include "core/interrupt.hpp"

namespace attn::cpu {

// Spins until `reached()`, and yields the processor after some spins. Returns false if interrupted.
template <class Reached>
bool wait_until(const Reached& reached, core::Interrupt* interrupt) {
  constexpr int kSpins = 256;  // a few microseconds; a strip takes 10 to 50
  for (int n = 0; !reached(); ++n) {
    if (n < kSpins) continue;
    if (core::interrupted(interrupt)) return false;
    std::this_thread::yield();
  }
  return true;
}

// A semaphore that orders the sums of a strip. wait_for_turn acquires it: it waits until `next` >=
// turn. `next` may be larger, because overlapping packed lengths (invalid input) make two sequences
// share it. pass_turn releases it.
inline bool wait_for_turn(std::int32_t& next, std::int32_t turn, core::Interrupt* interrupt) {
  return wait_until(
      [&] { return std::atomic_ref<std::int32_t>(next).load(std::memory_order_acquire) >= turn; },
      interrupt);
}
inline void pass_turn(std::int32_t& next, std::int32_t turn) {
  const std::atomic_ref<std::int32_t> shared(next);
  std::int32_t now = shared.load(std::memory_order_relaxed);
  while (now < turn && !shared.compare_exchange_weak(now, turn, std::memory_order_acq_rel)) {
  }
}

inline bool wait_for_zero(std::int64_t& count, core::Interrupt* interrupt) {
  return wait_until(
      [&] { return std::atomic_ref<std::int64_t>(count).load(std::memory_order_acquire) == 0; },
      interrupt);
}
inline void finish_one(std::int64_t& count) {
  std::atomic_ref<std::int64_t>(count).fetch_sub(1, std::memory_order_acq_rel);
}

}  // namespace attn::cpu
