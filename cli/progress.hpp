// A progress line on stderr: the current work and its time.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace attn::cli {

enum class ShowProgress { on_terminal, always };

class Progress {
 public:
  // On a terminal: one line, for work that takes more than half a second. Elsewhere: nothing, or
  // with `always` plain lines some seconds apart. The first of these is printed at once if there is
  // a text.
  Progress(ShowProgress show, std::string text);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void set(std::string text);

 private:
  void print(double seconds);
  void loop();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::string text_;
  bool done_ = false;
  bool terminal_ = false;
  bool shown_ = false;
  std::thread thread_;
};

}  // namespace attn::cli
