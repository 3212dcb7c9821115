// Cache: compiled kernels on disk, one file each. The file name is a hash of everything that the
// binary depends on. The file begins with the same data as plain text:
//   attn-cubin 2
//   xxh3=<hash of everything after this line>
//   compiler=13000
//   kernel=..., sources=..., config=..., options=..., architecture=..., each on a line
//   <an empty line, then the binary>
// A file with a mismatch is not used and is replaced. Files are created by rename, so that several
// processes may fill one folder. A folder that can't be written is still read.
#pragma once

#include <attn/cache.hpp>
#include <optional>
#include <string>
#include <vector>

namespace attn::cuda {

// Everything that a binary depends on except the compiler's version. Values contain no line breaks.
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
  // Stores files in the folder `cuda` of `root`. If root is empty, stores nothing.
  explicit Cache(const std::string& root);
  // ATTN_CACHE_DIR, else libattn in XDG_CACHE_HOME or ~/.cache; empty if none is known.
  static std::string default_root();

  [[nodiscard]] const std::string& folder() const { return folder_; }  // empty: none
  // The binary that this version of the compiler produced.
  [[nodiscard]] std::optional<std::string> load(const BinaryKey& key, int compiler) const;
  // The binary of the latest compiler of at most this major version, for machines without NVRTC.
  [[nodiscard]] std::optional<std::string> load_any(const BinaryKey& key, int major) const;
  // Tries to create the folder and a file in it. Returns why that fails, or "".
  [[nodiscard]] std::string unwritable() const;
  // False if the file could not be written; does not throw.
  bool store(const BinaryKey& key, int compiler, const std::string& cubin) const;
  // Every file that has a name of this cache, sorted by path.
  [[nodiscard]] std::vector<CacheEntry> list() const;
  // Removes them, and temporary files of processes that died. Returns the number of removed
  // entries. `failed` says why a file could not be removed; empty if all were.
  int clear(std::string& failed) const;

 private:
  std::string folder_;
};

}  // namespace attn::cuda
