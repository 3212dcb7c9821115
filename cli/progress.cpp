// The progress line.
#include "cli/progress.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <utility>

#include "platform/platform.hpp"

namespace attn::cli {

Progress::Progress(ShowProgress show, std::string text)
    : text_(std::move(text)), terminal_(platform::stderr_is_terminal()) {
  if (!terminal_ && show == ShowProgress::on_terminal) return;
  if (!terminal_ && !text_.empty()) print(0.0);
  thread_ = std::thread([this] { loop(); });
}

Progress::~Progress() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    done_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void Progress::set(std::string text) {
  const std::lock_guard lock(mutex_);
  text_ = std::move(text);
}

void Progress::print(double seconds) {
  shown_ = true;
  if (terminal_) {
    fmt::print(stderr, "\r\033[K{}  {:.0f} s", text_, seconds);
  } else {
    fmt::print(stderr, "{}  {:.1f} s\n", text_, seconds);
  }
  std::fflush(stderr);
}

void Progress::loop() {
  using namespace std::chrono_literals;
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, shown_ ? (terminal_ ? 200ms : 5000ms) : 500ms,
                         [this] { return done_; })) {
    print(std::chrono::duration<double>(Clock::now() - start).count());
  }
  if (shown_ && terminal_) fmt::print(stderr, "\r\033[K");
  std::fflush(stderr);
}

}  // namespace attn::cli
