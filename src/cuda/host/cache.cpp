// Compiled kernels on disk; see cache.hpp.
#include "cuda/host/cache.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "cuda/host/driver.hpp"
#include "cuda/host/hash.hpp"
#include "platform/platform.hpp"
#include "tuned/tuned_file.hpp"

namespace attn::cuda {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kOpening = "attn-cubin 2\nxxh3=";
constexpr std::string_view kSuffix = ".cubin";
constexpr std::string_view kTemporary = ".attn-";
constexpr std::int64_t kMostBytes = std::int64_t{1} << 28;  // larger files are not from this cache

// "<32 digits of the key>-nvrtc"
std::string stem_of(const BinaryKey& key) {
  return hash(key.text()) + "-nvrtc";
}

std::string name_of(const BinaryKey& key, int compiler) {
  return stem_of(key) + std::to_string(compiler) + std::string(kSuffix);
}

// The text after the checksum's line.
std::string content_of(const BinaryKey& key, int compiler) {
  return "compiler=" + std::to_string(compiler) + "\n" + key.text() + "\n";
}

std::optional<std::string> read_file(const std::string& path) {
  return platform::read_file(path, kMostBytes);
}

// The part after the checksum's line, if the checksum is correct.
std::optional<std::string_view> checked(std::string_view file) {
  if (!file.starts_with(kOpening) || file.size() <= kOpening.size() + kHashDigits)
    return std::nullopt;
  const std::string_view digest = file.substr(kOpening.size(), kHashDigits);
  file.remove_prefix(kOpening.size() + kHashDigits);
  if (!file.starts_with('\n')) return std::nullopt;
  file.remove_prefix(1);
  if (hash(file) != digest) return std::nullopt;
  return file;
}

// The value of a line "name=value"; empty if there is none.
std::string value_of(std::string_view text, const std::string& name) {
  const std::size_t at = text.find(name + "=");
  if (at == std::string_view::npos || (at > 0 && text[at - 1] != '\n')) return {};
  text.remove_prefix(at + name.size() + 1);
  return std::string(text.substr(0, text.find('\n')));
}

bool is_number(std::string_view text) {
  return !text.empty() && text.size() < 8 &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// The compiler's version in a file name of name_of(); 0 for other names.
int compiler_in(std::string_view name) {
  constexpr std::string_view kMark = "-nvrtc";
  if (!name.ends_with(kSuffix)) return 0;
  name.remove_suffix(kSuffix.size());
  const std::size_t at = name.find(kMark);
  if (at != 32) return 0;
  name.remove_prefix(at + kMark.size());
  return is_number(name) ? std::atoi(std::string(name).c_str()) : 0;
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

std::string BinaryKey::text() const {
  return "kernel=" + kernel + "\nsources=" + sources + "\nconfig=" + config +
         "\noptions=" + options + "\narchitecture=" + architecture + "\n";
}

Cache::Cache(const std::string& root) : folder_(root.empty() ? "" : root + "/cuda") {}

std::string Cache::default_root() {
  return tuned::cache_root();
}

std::optional<std::string> Cache::load(const BinaryKey& key, int compiler) const {
  if (folder_.empty()) return std::nullopt;
  const std::optional<std::string> file = read_file(folder_ + "/" + name_of(key, compiler));
  if (!file) return std::nullopt;
  const std::optional<std::string_view> content = checked(*file);
  const std::string expected = content_of(key, compiler);
  if (!content || !content->starts_with(expected)) return std::nullopt;
  return std::string(content->substr(expected.size()));
}

std::optional<std::string> Cache::load_any(const BinaryKey& key, int major) const {
  if (folder_.empty()) return std::nullopt;
  const std::string stem = stem_of(key);
  std::vector<int> compilers;
  for (const std::string& name : names_in(folder_)) {
    const int compiler = name.starts_with(stem) ? compiler_in(name) : 0;
    if (compiler > 0 && compiler / 1000 <= major) compilers.push_back(compiler);
  }
  std::sort(compilers.rbegin(), compilers.rend());
  for (const int compiler : compilers) {
    if (std::optional<std::string> cubin = load(key, compiler)) return cubin;
  }
  return std::nullopt;
}

std::string Cache::unwritable() const {
  if (folder_.empty()) return "no folder is known: ATTN_CACHE_DIR and HOME are not set";
  const auto because = [&] { return folder_ + ": " + std::strerror(errno); };
  if (!platform::make_private_folder(folder_)) return because();
  const std::string probe =
      folder_ + "/" + std::string(kTemporary) + std::to_string(platform::process_id());
  platform::remove_file(probe);
  if (!platform::write_new_file(probe, "x")) return because();
  platform::remove_file(probe);
  return {};
}

bool Cache::store(const BinaryKey& key, int compiler, const std::string& cubin) const {
  if (folder_.empty() || !platform::make_private_folder(folder_)) return false;
  static std::atomic<unsigned> count{0};
  const std::string content = content_of(key, compiler) + cubin;
  const std::string temporary = folder_ + "/" + std::string(kTemporary) +
                                std::to_string(platform::process_id()) + "-" +
                                std::to_string(count++) + "-" + name_of(key, compiler).substr(0, 8);
  std::string file(kOpening);
  file.append(hash(content)).append("\n").append(content);
  platform::remove_file(temporary);  // left by a dead process with the same id
  if (!platform::write_new_file(temporary, file)) return false;
  if (platform::replace_file(temporary, folder_ + "/" + name_of(key, compiler))) return true;
  platform::remove_file(temporary);
  return false;
}

std::vector<CacheEntry> Cache::list() const {
  std::vector<CacheEntry> entries;
  if (folder_.empty()) return entries;
  for (const std::string& name : names_in(folder_)) {
    const int compiler = compiler_in(name);
    if (compiler == 0) continue;
    CacheEntry entry;
    entry.path = folder_ + "/" + name;
    if (const std::optional<std::string> file = read_file(entry.path)) {
      entry.bytes = static_cast<std::int64_t>(file->size());
      const std::optional<std::string_view> content = checked(*file);
      const std::string_view text = content ? content->substr(0, content->find("\n\n") + 1) : "";
      entry.valid = value_of(text, "compiler") == std::to_string(compiler);
      if (entry.valid) {
        entry.kernel = value_of(text, "kernel");
        entry.architecture = value_of(text, "architecture");
        entry.compiler = version_text(compiler);
      }
    }
    entries.push_back(std::move(entry));
  }
  return entries;
}

int Cache::clear(std::string& failed) const {
  int removed = 0;
  failed.clear();
  if (folder_.empty()) return removed;
  for (const std::string& name : names_in(folder_)) {
    const bool entry = compiler_in(name) > 0;
    if (!entry && !name.starts_with(kTemporary)) continue;
    const std::string path = folder_ + "/" + name;
    if (platform::remove_file(path)) {
      removed += entry ? 1 : 0;
    } else if (errno != ENOENT) {  // unless another process removed it
      failed = path + ": " + std::strerror(errno);
    }
  }
  return removed;
}

}  // namespace attn::cuda
