// Tuned: tiles that were measured on a device (attn::tune_*), which take precedence over the
// heuristics of every family. Kept in a file for each device, see tuned/tuned_file.hpp. The
// families define keys and tiles as text (Family::tune_key, tune_candidates).
#pragma once

#include <optional>
#include <string>

#include "core/status.hpp"
#include "cuda/host/device.hpp"
#include "tuned/tuned_file.hpp"

namespace attn::cuda {

class Tuned {
 public:
  // Reads the device's file, if it exists. With an empty root, nothing is read or stored.
  Tuned(const std::string& root, std::string device);
  // The instance of this process for a device name; never freed.
  static Tuned& of(const std::string& device);

  [[nodiscard]] std::optional<std::string> find(const std::string& key) const {
    return file_.find(key);
  }
  // Affects later plans. Empty tiles restore the heuristics.
  void use(const std::string& key, const std::string& tiles) { file_.use(key, tiles); }
  [[nodiscard]] core::Status store() const { return file_.store(); }

  [[nodiscard]] const std::string& path() const { return file_.path(); }  // empty: not stored
  [[nodiscard]] std::size_t size() const { return file_.size(); }
  // Why the file was not used; empty if it was used or does not exist.
  [[nodiscard]] const std::string& problem() const { return file_.problem(); }

 private:
  tuned::TunedFile file_;
};

// The facts of a device, including the tiles that were measured on it.
core::Status tuned_facts(const Driver& driver, int ordinal, DeviceFacts& facts);

}  // namespace attn::cuda
