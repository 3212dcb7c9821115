// Tuned: tiles that were measured on a device (attn::tune_*), which take precedence over the
// heuristics of every family. Kept in a file for each device, see tuned/tuned_file.hpp. Keys and
// tiles are texts of the families (Family::tune_key, tune_candidates).
#pragma once

#include <optional>
#include <string>

#include "core/status.hpp"
#include "cuda/host/device.hpp"
#include "tuned/tuned_file.hpp"

namespace attn::cuda {

class Tuned {
 public:
  // Reads the file of the device where there is one. An empty root: none, and nothing is stored.
  Tuned(const std::string& root, std::string device);
  // The process's, by name of the device; kept for good.
  static Tuned& of(const std::string& device);

  [[nodiscard]] std::optional<std::string> find(const std::string& key) const {
    return file_.find(key);
  }
  // For plans made from now on; empty tiles: the heuristics choose.
  void use(const std::string& key, const std::string& tiles) { file_.use(key, tiles); }
  [[nodiscard]] core::Status store() const { return file_.store(); }

  [[nodiscard]] const std::string& path() const { return file_.path(); }  // empty: nowhere
  [[nodiscard]] std::size_t size() const { return file_.size(); }
  // Why the file was not used; empty where it was, or where there is none.
  [[nodiscard]] const std::string& problem() const { return file_.problem(); }

 private:
  tuned::TunedFile file_;
};

// The facts of a device with the tiles that were measured on it.
core::Status tuned_facts(const Driver& driver, int ordinal, DeviceFacts& facts);

}  // namespace attn::cuda
