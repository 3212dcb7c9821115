// Functions that take turns on one thread of the host, each until it waits at a barrier: a block's
// threads cost a switch of stacks, not a wake-up by the operating system, and run in the same order
// every time.
#pragma once

#include <ucontext.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <stdexcept>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#define ATTN_ADDRESS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ATTN_ADDRESS_SANITIZER 1
#endif
#endif
#ifdef ATTN_ADDRESS_SANITIZER
#include <sanitizer/common_interface_defs.h>
#endif

namespace emulated {

// As std::barrier: opens when all that are expected have arrived, or no longer will.
class Barrier {
 public:
  explicit Barrier(std::size_t expected) : expected_(expected) {}
  void arrive_and_wait();
  void arrive_and_drop() {
    --expected_;
    open_if_all();
  }
  [[nodiscard]] std::size_t times_open() const { return times_open_; }

 private:
  void open_if_all() {
    if (arrived_ < expected_) return;
    arrived_ = 0;
    ++times_open_;
  }
  std::size_t expected_;
  std::size_t arrived_ = 0;
  std::size_t times_open_ = 0;
};

class Fibers {
 public:
  explicit Fibers(std::size_t count) {
    for (std::size_t n = 0; n < count; ++n) fibers_.push_back(std::make_unique<Fiber>());
  }

  // body(n) for each fiber n; before_turn(n) whenever its turn comes. Throws where all wait and no
  // barrier opens.
  void run(const std::function<void(std::size_t)>& body,
           const std::function<void(std::size_t)>& before_turn) {
    body_ = &body;
    running_ = this;
    for (const auto& fiber : fibers_) fiber->start();
    std::size_t left = fibers_.size();
    while (left != 0) {
      bool moved = false;
      for (at_ = 0; at_ < fibers_.size(); ++at_) {
        Fiber& fiber = *fibers_[at_];
        if (!fiber.may_go_on()) continue;
        moved = true;
        before_turn(at_);
        resume(fiber);
        if (fiber.done) --left;
      }
      if (!moved) throw std::logic_error("all threads of a block wait, and no barrier opens");
    }
  }

  // The fiber that runs waits until the barrier has opened more often than so many times.
  static void wait(const Barrier& barrier, std::size_t times_open) {
    Fiber& fiber = running_->current();
    fiber.barrier = &barrier;
    fiber.times_open = times_open;
    running_->suspend(fiber);
  }

 private:
  struct Fiber {
    static constexpr std::size_t kStack = 256 * 1024;
    ucontext_t context{};
    std::unique_ptr<char[]> stack = std::make_unique_for_overwrite<char[]>(kStack);
    const Barrier* barrier = nullptr;
    std::size_t times_open = 0;
    bool done = false;

    void start() {
      barrier = nullptr;
      done = false;
      getcontext(&context);
      context.uc_stack.ss_sp = stack.get();
      context.uc_stack.ss_size = kStack;
      context.uc_link = nullptr;
      makecontext(&context, &Fibers::enter, 0);
    }
    [[nodiscard]] bool may_go_on() const {
      return !done && (barrier == nullptr || barrier->times_open() != times_open);
    }
  };
  Fiber& current() { return *fibers_[at_]; }

  static void enter() {
    Fibers& all = *running_;
    all.arrived(nullptr);
    (*all.body_)(all.at_);
    all.current().done = true;
    all.suspend(all.current());
  }

  // The address sanitizer has to be told of every switch: which stack comes, and which frames of
  // the one that is left are to be kept.
  void resume(Fiber& fiber) {
#ifdef ATTN_ADDRESS_SANITIZER
    void* frames = nullptr;
    __sanitizer_start_switch_fiber(&frames, fiber.stack.get(), Fiber::kStack);
#endif
    swapcontext(&scheduler_, &fiber.context);
#ifdef ATTN_ADDRESS_SANITIZER
    __sanitizer_finish_switch_fiber(frames, nullptr, nullptr);
#endif
  }
  void suspend(Fiber& fiber) {
    void* frames = nullptr;
#ifdef ATTN_ADDRESS_SANITIZER
    __sanitizer_start_switch_fiber(fiber.done ? nullptr : &frames, scheduler_stack_,
                                   scheduler_size_);
#endif
    swapcontext(&fiber.context, &scheduler_);
    arrived(frames);
  }
  void arrived([[maybe_unused]] void* frames) {
#ifdef ATTN_ADDRESS_SANITIZER
    __sanitizer_finish_switch_fiber(frames, &scheduler_stack_, &scheduler_size_);
#endif
  }

  inline static thread_local Fibers* running_ = nullptr;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  const std::function<void(std::size_t)>* body_ = nullptr;
  std::size_t at_ = 0;  // the fiber that runs
  ucontext_t scheduler_{};
#ifdef ATTN_ADDRESS_SANITIZER
  const void* scheduler_stack_ = nullptr;
  std::size_t scheduler_size_ = 0;
#endif
};

inline void Barrier::arrive_and_wait() {
  const std::size_t before = times_open_;
  ++arrived_;
  open_if_all();
  if (times_open_ == before) Fibers::wait(*this, before);
}

}  // namespace emulated
