// Measured tiles; see tuned.hpp.
#include "cuda/families/tuned.hpp"

#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "cuda/families/sm80/tiles_text.hpp"
#include "cuda/families/sm90/forward_tuning.hpp"
#include "cuda/host/cache.hpp"

namespace attn::cuda {
namespace {

constexpr int kVersion = 5;  // of the text format of keys and tiles

}  // namespace

Tuned::Tuned(const std::string& root, std::string device)
    : file_({root, "cuda", std::move(device), kVersion}, [](const std::string& tiles) {
        return sm80::parse_tiles(tiles).has_value() || sm90::parse_tiles(tiles).has_value();
      }) {}

Tuned& Tuned::of(const std::string& device) {
  static std::mutex mutex;
  static auto& all =
      *new std::map<std::string, std::unique_ptr<Tuned>>;  // never freed: plans refer to it
  const std::lock_guard lock(mutex);
  std::unique_ptr<Tuned>& tuned = all[device];
  if (tuned == nullptr) tuned = std::make_unique<Tuned>(Cache::default_root(), device);
  return *tuned;
}

core::Status tuned_facts(const Driver& driver, int ordinal, DeviceFacts& facts) {
  const DeviceFacts* known = nullptr;
  core::Status status = device_facts(driver, ordinal, known);
  if (!status.ok()) return status;
  facts = *known;
  facts.tuned = &Tuned::of(facts.name);
  return {};
}

}  // namespace attn::cuda
