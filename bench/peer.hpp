// Peer: PyTorch's attention on the CPU in a process of its own (bench/peers/torch_cpu.py), driven
// line by line, so that its calls alternate with the library's on the same cores.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "bench/cells.hpp"

namespace attn::bench {

class TorchPeer {
 public:
  // Throws std::runtime_error with what the process said when it does not come up.
  TorchPeer(const std::string& python, std::int32_t threads);
  ~TorchPeer();
  TorchPeer(const TorchPeer&) = delete;
  TorchPeer& operator=(const TorchPeer&) = delete;

  [[nodiscard]] const std::string& version() const { return version_; }
  // Makes the tensors of a plain cell and calls once. False when PyTorch can't do it.
  bool load(const Cell& cell);
  // The seconds of each call within the budget.
  std::vector<double> sample(double budget, int least);

 private:
  std::string ask(const std::string& request);

  pid_t process_ = -1;
  std::FILE* to_ = nullptr;
  std::FILE* from_ = nullptr;
  std::string version_;
};

}  // namespace attn::bench
