// Binaries of kernels; see binaries.hpp.
#include "cuda/host/binaries.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <limits>
#include <map>
#include <thread>
#include <utility>

#include "cuda/host/driver.hpp"
#include "cuda/host/hash.hpp"

namespace attn::cuda {
namespace {

std::string joined(std::span<const std::string> words) {
  std::string text;
  for (const std::string& word : words) text.append(text.empty() ? "" : " ").append(word);
  return text;
}

// A cubin is an ELF file.
bool is_cubin(const std::string& bytes) {
  return bytes.starts_with(
      "\x7f"
      "ELF");
}

}  // namespace

std::span<const std::string> compile_options() {
  // -v: ptxas logs registers, spills and warnings.
  static const std::vector<std::string> kOptions{"--std=c++20", "-default-device",
                                                 "--ptxas-options=-v"};
  return kOptions;
}

core::Status binary_key(const Config& config, const std::string& architecture, BinaryKey& key) {
  const Unit* unit = nullptr;
  if (core::Status status = find_unit(config.source(), unit); !status.ok()) return status;
  key = {to_string(config), unit->hash, hash(header_text(config)), joined(compile_options()),
         architecture};
  return {};
}

Binaries::Binaries(Cache cache, int driver_version, const Nvrtc* nvrtc, std::string no_nvrtc)
    : cache_(std::move(cache)),
      driver_version_(driver_version),
      nvrtc_(nvrtc),
      no_nvrtc_(std::move(no_nvrtc)) {}

Binaries& Binaries::of(const std::string& cache_root, int driver_version) {
  static std::mutex mutex;
  // Never freed: modules may be loaded until the end of the process.
  static auto& all = *new std::map<std::pair<std::string, int>, std::unique_ptr<Binaries>>;
  const std::string root = cache_root.empty() ? Cache::default_root() : cache_root;
  const std::lock_guard<std::mutex> lock(mutex);
  std::unique_ptr<Binaries>& binaries = all[{root, driver_version}];
  if (binaries == nullptr) {
    std::string reason;
    const Nvrtc* nvrtc = Nvrtc::get(driver_version, reason);
    binaries = std::make_unique<Binaries>(Cache(root), driver_version, nvrtc, reason);
  }
  return *binaries;
}

std::shared_ptr<Binaries::Slot> Binaries::slot_of(const Config& config, int capability) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::shared_ptr<Slot>& slot = slots_[config][capability];
  if (slot == nullptr) slot = std::make_shared<Slot>();
  return slot;
}

core::Status Binaries::get(const Config& config, int capability, const Binary*& binary) {
  const std::shared_ptr<Slot> slot = slot_of(config, capability);
  // Failures are not stored, because memory or disk space may be available next time.
  const std::lock_guard<std::mutex> lock(slot->mutex);
  if (slot->binary == nullptr) {
    auto made = std::make_unique<Binary>();
    if (core::Status status = make(config, capability, true, *made); !status.ok()) return status;
    slot->binary = std::move(made);
  }
  binary = slot->binary.get();
  return {};
}

core::Status Binaries::replace(const Config& config, int capability, const Binary*& binary) {
  const std::shared_ptr<Slot> slot = slot_of(config, capability);
  const std::lock_guard<std::mutex> lock(slot->mutex);
  const bool current = slot->binary.get() == binary;  // else another thread replaced it
  if (current && binary->from == Binary::From::disk && nvrtc_ != nullptr) {
    auto made = std::make_unique<Binary>();
    if (core::Status status = make(config, capability, false, *made); !status.ok()) return status;
    slot->replaced = std::move(slot->binary);
    slot->binary = std::move(made);
  }
  binary = slot->binary.get();
  return {};
}

core::Status Binaries::get_all(std::span<const Config> configs, int capability, int threads) {
  if (threads <= 0) threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  std::vector<core::Status> statuses(configs.size());
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t i = next++; i < configs.size(); i = next++) {
      const Binary* binary = nullptr;
      statuses[i] = get(configs[i], capability, binary);
    }
  };
  const std::size_t workers = std::min(configs.size(), static_cast<std::size_t>(threads));
  std::vector<std::thread> others;
  try {
    for (std::size_t i = 1; i < workers; ++i) others.emplace_back(work);
  } catch (const std::system_error&) {
    // No more threads can be created; the existing ones do the work.
  }
  work();
  for (std::thread& other : others) other.join();
  for (core::Status& status : statuses) {
    if (!status.ok()) return std::move(status);
  }
  return {};
}

core::Status Binaries::make(const Config& config, int capability, bool read_disk,
                            Binary& binary) const {
  const auto start = std::chrono::steady_clock::now();
  const auto done = [&] {
    binary.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return core::Status{};
  };
  BinaryKey key;
  if (core::Status status = binary_key(config, "", key); !status.ok()) return status;
  const auto from_disk = [&](std::optional<std::string> cubin) {
    if (!cubin || !is_cubin(*cubin)) return false;
    binary.from = Binary::From::disk;
    binary.kept = true;
    binary.architecture = key.architecture;
    binary.cubin = std::move(*cubin);
    return true;
  };

  if (nvrtc_ == nullptr) {
    const int major =
        driver_version_ > 0 ? driver_version_ / 1000 : std::numeric_limits<int>::max();
    for (int below = capability; below >= capability / 10 * 10; --below) {
      key.architecture = choose_architecture(capability, std::span(&below, 1));
      if (from_disk(cache_.load_any(key, major))) return done();
    }
    return core::Status::unsupported("cuda: no binary of " + key.kernel + " in " +
                                     (cache_.folder().empty() ? "any cache" : cache_.folder()) +
                                     ", and " + no_nvrtc_);
  }

  key.architecture = choose_architecture(capability, nvrtc_->capabilities());
  if (key.architecture.empty()) {
    return core::Status::unsupported("cuda: NVRTC " + version_text(nvrtc_->version()) + " (" +
                                     nvrtc_->path() + ") does not compile for compute capability " +
                                     std::to_string(capability / 10) + "." +
                                     std::to_string(capability % 10));
  }
  if (read_disk && from_disk(cache_.load(key, nvrtc_->version()))) return done();
  const Unit* unit = nullptr;
  if (core::Status status = find_unit(config.source(), unit); !status.ok()) return status;
  Compiled compiled =
      nvrtc_->compile(*unit, header_text(config), compile_options(), key.architecture);
  if (!compiled.status.ok()) {
    compiled.status.message += "\nConfig: " + key.kernel;
    return compiled.status;
  }
  binary.kept = cache_.store(key, nvrtc_->version(), compiled.cubin);
  binary.from = Binary::From::compiler;
  binary.architecture = key.architecture;
  binary.cubin = std::move(compiled.cubin);
  binary.log = std::move(compiled.log);
  return done();
}

}  // namespace attn::cuda
