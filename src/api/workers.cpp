// The helper threads of workers.hpp: how they take work, sleep and wake.
#include "api/workers.hpp"

#include <chrono>
#include <system_error>
#include <thread>

#include "platform/platform.hpp"

namespace attn::api {

namespace {

// Longer than the serial code between the regions of one call, and short compared with a scheduler
// tick.
constexpr std::chrono::microseconds kSpin{30};

// state_ is call (32 bits), workers (16), next worker (16).
constexpr std::uint32_t kMostWorkers = 0xFFFF;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Returns whether ready() became true while spinning for kSpin.
template <class Ready>
bool spin_until(Ready ready) {
  const auto end = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 32; ++i) {
      if (ready()) return true;
      pause();
    }
  } while (std::chrono::steady_clock::now() < end);
  return ready();
}

}  // namespace

// Takes the next worker of the current call. Afterwards, this thread sees what the caller wrote
// before state_. It does not change meanwhile, since the call can't end before this worker has run.
bool Workers::take(std::uint32_t* worker, std::uint32_t* workers) {
  std::uint64_t state = state_.load(std::memory_order_acquire);
  for (;;) {
    const auto next = static_cast<std::uint32_t>(state & 0xFFFF);
    const auto all = static_cast<std::uint32_t>(state >> 16 & 0xFFFF);
    if (next >= all) return false;
    if (state_.compare_exchange_weak(state, state + 1, std::memory_order_acq_rel,
                                     std::memory_order_acquire)) {
      *worker = next;
      *workers = all;
      return true;
    }
  }
}

void Workers::work_as(std::uint32_t worker, std::uint32_t workers) {
  body_(body_data_, static_cast<std::int32_t>(worker));
  // The last worker wakes a sleeping caller. If the caller has returned by then, done_ belongs to
  // its next call, which tolerates a spurious wake-up.
  if (done_.fetch_add(1, std::memory_order_seq_cst) + 1 == workers &&
      caller_asleep_.load(std::memory_order_seq_cst)) {
    platform::wake(done_, 1);
  }
}

void Workers::work() {
  std::uint32_t worker = 0;
  std::uint32_t workers = 0;
  while (take(&worker, &workers)) work_as(worker, workers);
}

void Workers::help() {
  for (;;) {
    const std::uint32_t seen = wake_.load(std::memory_order_acquire);
    work();
    const auto called = [&] { return wake_.load(std::memory_order_relaxed) != seen; };
    if (spin_until(called)) continue;
    asleep_.fetch_add(1, std::memory_order_seq_cst);
    platform::sleep_on(wake_, seen);
    asleep_.fetch_sub(1, std::memory_order_relaxed);
  }
}

// Helpers block all signals, so that the threads of the program handle them.
void Workers::start_helpers(std::int32_t wanted) {
  std::int32_t helpers = helpers_.load(std::memory_order_relaxed);
  if (helpers >= wanted) return;
  const platform::SignalsBlocked inherited;
  try {
    for (; helpers < wanted; ++helpers) std::thread([this] { help(); }).detach();
  } catch (const std::system_error&) {
    // The existing helpers and the caller do the work.
  }
  helpers_.store(helpers, std::memory_order_relaxed);
}

void Workers::wait_for_others(std::uint32_t workers) {
  const auto all_done = [&] { return done_.load(std::memory_order_acquire) == workers; };
  if (spin_until(all_done)) return;
  caller_asleep_.store(true, std::memory_order_seq_cst);
  for (;;) {
    const std::uint32_t done = done_.load(std::memory_order_seq_cst);
    if (done == workers) break;
    // Woken by the last worker; earlier ones change the word only while this thread is awake.
    platform::sleep_on(done_, done);
  }
  caller_asleep_.store(false, std::memory_order_relaxed);
}

void Workers::run(std::int32_t workers, void (*body)(void*, std::int32_t), void* body_data) {
  const auto count = static_cast<std::uint32_t>(workers);
  if (workers <= 1 || count > kMostWorkers || busy_.exchange(true, std::memory_order_acquire)) {
    for (std::int32_t worker = 0; worker < workers; ++worker) body(body_data, worker);
    return;
  }
  start_helpers(workers - 1);
  body_ = body;
  body_data_ = body_data;
  done_.store(0, std::memory_order_relaxed);
  const std::uint64_t call = (state_.load(std::memory_order_relaxed) >> 32) + 1;
  // The caller runs worker 0, because only the calling thread runs should_stop (core::Interrupt).
  // If helpers of earlier, wider calls took every worker, should_stop would not run during the
  // call.
  state_.store(call << 32 | std::uint64_t{count} << 16 | 1, std::memory_order_release);
  wake_.fetch_add(1, std::memory_order_seq_cst);
  if (asleep_.load(std::memory_order_seq_cst) > 0) platform::wake(wake_, count - 1);
  work_as(0, count);
  work();
  wait_for_others(count);
  busy_.store(false, std::memory_order_release);
}

void Workers::forget() {
  state_.store(0, std::memory_order_relaxed);
  done_.store(0, std::memory_order_relaxed);
  wake_.store(0, std::memory_order_relaxed);
  asleep_.store(0, std::memory_order_relaxed);
  busy_.store(false, std::memory_order_relaxed);
  caller_asleep_.store(false, std::memory_order_relaxed);
  helpers_.store(0, std::memory_order_relaxed);
}

}  // namespace attn::api
