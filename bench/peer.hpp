// Peer: PyTorch's attention on the CPU in a separate process (bench/peers/torch_cpu.py), driven
// line by line so that its calls alternate with the library's on the same cores.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/cells.hpp"
#include "platform/platform.hpp"

namespace attn::bench {

class TorchPeer {
 public:
  // Throws std::runtime_error with the process's output if it does not start.
  TorchPeer(const std::string& python, std::int32_t threads);
  ~TorchPeer();
  TorchPeer(const TorchPeer&) = delete;
  TorchPeer& operator=(const TorchPeer&) = delete;

  [[nodiscard]] const std::string& version() const { return version_; }
  // Creates the tensors of a plain cell and calls once. False if PyTorch does not support it.
  bool load(const Cell& cell);
  // Calls until the time budget is used; returns the seconds of each.
  std::vector<double> sample(double budget, int least);
  // Likewise for an f32 matrix product of square matrices; empty if PyTorch fails.
  std::vector<double> sample_gemm(std::int64_t size, double budget, int least);

 private:
  std::string ask(const std::string& request);

  platform::Child process_;
  std::string version_;
};

}  // namespace attn::bench
