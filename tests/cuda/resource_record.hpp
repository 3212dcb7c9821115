// What the assembler said of kernels that were compiled before, in a file that is committed, so
// that only what has changed is compiled: kernel_resources.record of attn_cuda_configs, and
// tested_kernels.record of tests.
// A line:
//   KEY ENTRY REGISTERS STACK SPILL_STORES SPILL_LOADS SHARED [ENTRY ...]
// KEY: hash of all sources of a kernel, its constants, the compiler's version and options, and the
// architecture. Kernels with notes (wgmma serialized) are never recorded.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "cuda/host/config.hpp"
#include "cuda/host/nvrtc.hpp"
#include "cuda/host/ptxas_log.hpp"

namespace attn::cuda::test {

// Bytes that a thread spills, stores plus loads, where O and its sums in f32 do not both fit into
// registers: f8 above dim 128, once for several tiles of keys.
inline constexpr int kMostSpilledWithSums = 3600;

// The KEY of a Config's kernel on devices of `capability`.
core::Status record_key(const Nvrtc& nvrtc, const Config& config, int capability, std::string& key);

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
