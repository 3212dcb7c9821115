// TunedFile: tiles that were measured on a device (attn::tune_*), which plans take before those of
// the heuristics. Kept in a text file for each device in the cache folder of the process:
//   attn-tuned 4
//   device=NVIDIA H200
//   forward dim_qk=64 ... : tile_q=128 tile_kv=64 ...
// A file with a line that can't be read is not used at all; problem() tells why. What stands before
// and after the colon is the backend's.
#pragma once

#include <map>
#include <optional>
#include <shared_mutex>
#include <string>

#include "core/status.hpp"

namespace attn::tuned {

// ATTN_CACHE_DIR, else libattn in XDG_CACHE_HOME or ~/.cache; empty where none is known.
std::string cache_root();

struct Origin {
  std::string root;     // the cache folder; empty: no file is read, and nothing is stored
  std::string backend;  // the file lies in the folder of this name
  std::string device;
  int version = 1;  // of the backend's keys and tiles; files of another one are not used
};

class TunedFile {
 public:
  // Reads the file where there is one. `readable`: whether a text is tiles.
  TunedFile(Origin origin, bool (*readable)(const std::string& tiles));

  [[nodiscard]] std::optional<std::string> find(const std::string& key) const;
  // For plans made from now on; empty tiles: the heuristics choose.
  void use(const std::string& key, const std::string& tiles);
  // Writes the file, by atomic rename.
  [[nodiscard]] core::Status store() const;

  [[nodiscard]] const std::string& path() const { return path_; }  // empty: nowhere
  [[nodiscard]] std::size_t size() const;
  // Why the file was not used; empty where it was, or where there is none.
  [[nodiscard]] const std::string& problem() const { return problem_; }

 private:
  [[nodiscard]] std::string opening() const;
  // What is wrong with the file's text; empty: nothing.
  std::string read(const std::string& text, bool (*readable)(const std::string&));

  Origin origin_;
  std::string folder_;
  std::string path_;
  std::string problem_;
  mutable std::shared_mutex mutex_;
  std::map<std::string, std::string> tiles_;
};

}  // namespace attn::tuned
