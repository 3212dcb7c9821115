// Binaries: a Config and a device's compute capability -> the binary, from this process, from the
// cache on disk, or compiled. Each is made once even where many threads ask for it at once, and
// different ones are made side by side.
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

// What every kernel is compiled with.
std::span<const std::string> compile_options();

// What names a binary on disk.
core::Status binary_key(const Config& config, const std::string& architecture, BinaryKey& key);

struct Binary {
  enum class From { compiler, disk };
  From from = From::compiler;
  std::string cubin;
  std::string architecture;
  std::string log;       // the compiler's; empty from the disk
  bool kept = false;     // it is on the disk
  double seconds = 0.0;  // to compile or to read
};

class Binaries {
 public:
  // `driver_version` as of Nvrtc::get(); `nvrtc` null: only what is in the cache, and for what is
  // not, no_nvrtc is the reason.
  Binaries(Cache cache, int driver_version, const Nvrtc* nvrtc, std::string no_nvrtc);
  // The process's, by folder (empty: Cache::default_root()) and driver.
  static Binaries& of(const std::string& cache_root, int driver_version);

  // `binary` stays where it is.
  core::Status get(const Config& config, int capability, const Binary*& binary);
  // For a binary that the driver refused to load. If it came from the disk, it is compiled again,
  // replaced on the disk, and `binary` is the new one. Otherwise `binary` is unchanged.
  core::Status replace(const Config& config, int capability, const Binary*& binary);
  // get() for many on `threads` threads (0: one for each processor). Returns the first failure.
  core::Status get_all(std::span<const Config> configs, int capability, int threads);

  [[nodiscard]] const Cache& cache() const { return cache_; }

 private:
  struct Slot {
    std::mutex mutex;
    std::unique_ptr<const Binary> binary;
    std::unique_ptr<const Binary> replaced;  // others may be reading it
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
