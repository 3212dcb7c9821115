// A line on stderr that says what is going on and for how long, while the work runs elsewhere.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace attn::cli {

enum class ShowProgress { on_terminal, always };

class Progress {
 public:
  // Shows nothing for work that ends within half a second, or when stderr is no terminal (unless
  // `always`: then plain lines, some seconds apart).
  Progress(ShowProgress show, std::string text);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void set(std::string text);

 private:
  void loop();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::string text_;
  bool done_ = false;
  bool terminal_ = false;
  std::thread thread_;
};

}  // namespace attn::cli
