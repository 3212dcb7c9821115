// Cache: compiled kernels on disk, one file each. A file is named after all that made it, and opens
// with it in plain text:
//   attn-cubin 1
//   sha256=<of all that follows this line>
//   compiler=13000
//   kernel=..., sources=..., config=..., options=..., architecture=..., each on a line
//   <an empty line, then the binary>
// What does not match to the last byte is not used and is written anew. Files appear by rename, so
// that several processes may fill one folder; a folder that can't be written is read all the same.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace attn::cuda {

// All that makes a binary but the compiler's version. No value may contain a line break.
struct BinaryKey {
  std::string kernel;        // to_string(Config)
  std::string sources;       // Unit::hash
  std::string config;        // hash of header_text(Config)
  std::string options;       // of the compiler, separated by blanks
  std::string architecture;  // "sm_90a"

  [[nodiscard]] std::string text() const;  // lines "name=value"
};

struct CacheEntry {
  std::string file;  // name in the folder
  std::string kernel;
  std::string architecture;
  int compiler = 0;  // 13000 of 13.0
  std::int64_t bytes = 0;
  bool valid = false;  // false: damaged, or of another version; rebuilt when it is needed
};

class Cache {
 public:
  // Of the folder `cuda` in `root`. An empty root: nothing is kept.
  explicit Cache(const std::string& root);
  // ATTN_CACHE_DIR, else libattn in XDG_CACHE_HOME or ~/.cache; empty where none is known.
  static std::string default_root();

  [[nodiscard]] const std::string& folder() const { return folder_; }  // empty: none
  // The binary made by this version of the compiler.
  [[nodiscard]] std::optional<std::string> load(const BinaryKey& key, int compiler) const;
  // The one made by the latest compiler of at most this major version: for machines without one.
  [[nodiscard]] std::optional<std::string> load_any(const BinaryKey& key, int major) const;
  // False where it could not be written; never throws for that.
  bool store(const BinaryKey& key, int compiler, const std::string& cubin) const;
  // Every file that looks like one of ours, sorted by name.
  [[nodiscard]] std::vector<CacheEntry> list() const;
  // Removes them and left-overs of writers that died; how many entries were removed.
  int clear() const;

 private:
  std::string folder_;
};

}  // namespace attn::cuda
