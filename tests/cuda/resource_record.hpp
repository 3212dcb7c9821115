// What the assembler said of kernels that were compiled before, in a file that is committed
// (tests/cuda/kernel_resources.record), so that attn_cuda_configs compiles what has changed alone.
// A line:
//   KEY ENTRY REGISTERS STACK SPILL_STORES SPILL_LOADS SHARED [ENTRY ...]
// KEY: hash of all sources of a kernel, its constants, the compiler's version and options, and the
// architecture. Kernels with notes (wgmma serialized) are never recorded.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "cuda/host/ptxas_log.hpp"

namespace attn::cuda::test {

class ResourceRecord {
 public:
  // False if the file exists and has a line that is none. A missing file is an empty record.
  bool read(const std::string& path);
  [[nodiscard]] bool write(const std::string& path) const;

  [[nodiscard]] std::optional<ResourceReport> find(const std::string& key) const;
  void add(const std::string& key, const ResourceReport& report);

 private:
  std::map<std::string, std::string> lines_;  // key -> the rest of its line
};

}  // namespace attn::cuda::test
