// Binaries: finds the binary of a Config and a compute capability in this process or in the cache
// on disk, or compiles it. Each binary is made once, even if many threads request it at once;
// different binaries are made concurrently.
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/status.hpp"
#include "cuda/host/cache.hpp"
#include "cuda/host/config.hpp"
#include "cuda/host/nvrtc.hpp"

namespace attn::cuda {

// The compiler options of every kernel.
std::span<const std::string> compile_options();

// The key of a binary on disk.
core::Status binary_key(const Config& config, const std::string& architecture, BinaryKey& key);

struct Binary {
  enum class From { compiler, disk };
  From from = From::compiler;
  std::string cubin;
  std::string architecture;
  std::string log;       // of the compiler; empty if read from disk
  bool kept = false;     // whether it is on disk
  double seconds = 0.0;  // time to compile or read it
};

class Binaries {
 public:
  // `driver_version` as in Nvrtc::get(). If `nvrtc` is null, only cached binaries are found, and
  // no_nvrtc is the reason given for others.
  Binaries(Cache cache, int driver_version, const Nvrtc* nvrtc, std::string no_nvrtc);
  // The instance of this process for a folder (empty: Cache::default_root()) and driver.
  static Binaries& of(const std::string& cache_root, int driver_version);

  // The pointer stays valid while this object lives.
  core::Status get(const Config& config, int capability, const Binary*& binary);
  // For a binary that the driver refused to load. If it came from disk, it is compiled again and
  // replaced on disk, and `binary` is the new one. Otherwise `binary` is unchanged.
  core::Status replace(const Config& config, int capability, const Binary*& binary);
  // get() for many on `threads` threads (0: one for each processor). Returns the first failure.
  core::Status get_all(std::span<const Config> configs, int capability, int threads);

  [[nodiscard]] const Cache& cache() const { return cache_; }

 private:
  struct Slot {
    std::mutex mutex;
    std::unique_ptr<const Binary> binary;
    std::unique_ptr<const Binary> replaced;  // kept, since other threads may read it
  };
  std::shared_ptr<Slot> slot_of(const Config& config, int capability);
  core::Status make(const Config& config, int capability, bool read_disk, Binary& binary) const;

  Cache cache_;
  int driver_version_;
  const Nvrtc* nvrtc_;
  std::string no_nvrtc_;
  std::mutex mutex_;
  std::unordered_map<Config, std::unordered_map<int, std::shared_ptr<Slot>>> slots_;
};

}  // namespace attn::cuda
