// Cache: compiled kernels on disk, one file each. A file is named after all that made it, and opens
// with it in plain text:
//   attn-cubin 2
//   xxh3=<hash of everything after this line>
//   compiler=13000
//   kernel=..., sources=..., config=..., options=..., architecture=..., each on a line
//   <an empty line, then the binary>
// A file that does not match to the last byte is not used and is written again. Files appear by
// rename, so that several processes may fill one folder. A folder that can't be written is still
// read.
#pragma once

#include <attn/cache.hpp>
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

class Cache {
 public:
  // Keeps its files in the folder `cuda` of `root`. An empty root: nothing is kept.
  explicit Cache(const std::string& root);
  // ATTN_CACHE_DIR, else libattn in XDG_CACHE_HOME or ~/.cache; empty where none is known.
  static std::string default_root();

  [[nodiscard]] const std::string& folder() const { return folder_; }  // empty: none
  // The binary made by this version of the compiler.
  [[nodiscard]] std::optional<std::string> load(const BinaryKey& key, int compiler) const;
  // The one made by the latest compiler of at most this major version: for machines without one.
  [[nodiscard]] std::optional<std::string> load_any(const BinaryKey& key, int major) const;
  // Makes the folder and writes a file to it; why that can't be done, empty where it can.
  [[nodiscard]] std::string unwritable() const;
  // False where it could not be written; never throws for that.
  bool store(const BinaryKey& key, int compiler, const std::string& cubin) const;
  // Every file that looks like one of ours, sorted by path.
  [[nodiscard]] std::vector<CacheEntry> list() const;
  // Removes them and left-overs of writers that died; how many entries were removed. `failed`: why
  // one could not be, empty where all could.
  int clear(std::string& failed) const;

 private:
  std::string folder_;
};

}  // namespace attn::cuda
