// Compiled kernels on disk; see cache.hpp.
#include "cuda/host/cache.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "cuda/host/driver.hpp"
#include "cuda/host/hash.hpp"

namespace attn::cuda {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kOpening = "attn-cubin 2\nxxh3=";
constexpr std::string_view kSuffix = ".cubin";
constexpr std::string_view kTemporary = ".attn-";
constexpr std::int64_t kMostBytes = std::int64_t{1} << 28;  // a larger file is none of ours

// "<32 digits of the key>-nvrtc"
std::string stem_of(const BinaryKey& key) {
  return hash(key.text()) + "-nvrtc";
}

std::string name_of(const BinaryKey& key, int compiler) {
  return stem_of(key) + std::to_string(compiler) + std::string(kSuffix);
}

// What follows the line of the checksum.
std::string content_of(const BinaryKey& key, int compiler) {
  return "compiler=" + std::to_string(compiler) + "\n" + key.text() + "\n";
}

std::optional<std::string> read_file(const std::string& path) {
  // Not blocking, so that a pipe in the folder holds nobody up.
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return std::nullopt;
  struct stat about{};
  std::string bytes;
  bool good = ::fstat(file, &about) == 0 && S_ISREG(about.st_mode) && about.st_size <= kMostBytes;
  if (good) bytes.resize(static_cast<std::size_t>(about.st_size));
  for (std::size_t at = 0; good && at < bytes.size();) {
    const ssize_t got = ::read(file, bytes.data() + at, bytes.size() - at);
    good = got > 0;
    if (good) at += static_cast<std::size_t>(got);
  }
  ::close(file);
  if (!good) return std::nullopt;
  return bytes;
}

// The part after the checksum's line, where the checksum is right.
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

// The value of a line "name=value"; empty where there is none.
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

// The compiler's version in a name made by name_of; 0 where it is none.
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

bool write_file(const std::string& path, std::string_view bytes) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (file < 0) return false;
  bool good = true;
  while (good && !bytes.empty()) {
    const ssize_t done = ::write(file, bytes.data(), bytes.size());
    good = done > 0;
    if (good) bytes.remove_prefix(static_cast<std::size_t>(done));
  }
  good = ::close(file) == 0 && good;
  if (!good) ::unlink(path.c_str());
  return good;
}

// Folders that are missing are made for the user alone: what is in them gets run. False: errno.
bool make_folder(const fs::path& folder) {
  std::error_code error;
  if (fs::is_directory(folder, error)) return true;
  if (folder.has_parent_path() && folder.parent_path() != folder &&
      !make_folder(folder.parent_path())) {
    return false;
  }
  if (::mkdir(folder.c_str(), 0700) == 0) return true;
  const int why = errno;
  if (fs::is_directory(folder, error)) return true;  // another process was quicker
  errno = why == EEXIST ? ENOTDIR : why;
  return false;
}

}  // namespace

std::string BinaryKey::text() const {
  return "kernel=" + kernel + "\nsources=" + sources + "\nconfig=" + config +
         "\noptions=" + options + "\narchitecture=" + architecture + "\n";
}

Cache::Cache(const std::string& root) : folder_(root.empty() ? "" : root + "/cuda") {}

std::string Cache::default_root() {
  const auto given = [](const char* name) -> std::string {
    const char* value = std::getenv(name);
    return value != nullptr ? value : "";
  };
  if (std::string root = given("ATTN_CACHE_DIR"); !root.empty()) return root;
  if (const std::string root = given("XDG_CACHE_HOME"); !root.empty()) return root + "/libattn";
  if (const std::string home = given("HOME"); !home.empty()) return home + "/.cache/libattn";
  return {};
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
  if (!make_folder(folder_)) return because();
  const std::string probe = folder_ + "/" + std::string(kTemporary) + std::to_string(::getpid());
  ::unlink(probe.c_str());
  if (!write_file(probe, "x")) return because();
  ::unlink(probe.c_str());
  return {};
}

bool Cache::store(const BinaryKey& key, int compiler, const std::string& cubin) const {
  if (folder_.empty() || !make_folder(folder_)) return false;
  static std::atomic<unsigned> count{0};
  const std::string content = content_of(key, compiler) + cubin;
  const std::string temporary = folder_ + "/" + std::string(kTemporary) +
                                std::to_string(::getpid()) + "-" + std::to_string(count++) + "-" +
                                name_of(key, compiler).substr(0, 8);
  std::string file(kOpening);
  file.append(hash(content)).append("\n").append(content);
  ::unlink(temporary.c_str());  // of a process that died and had this id
  if (!write_file(temporary, file)) return false;
  if (::rename(temporary.c_str(), (folder_ + "/" + name_of(key, compiler)).c_str()) == 0) {
    return true;
  }
  ::unlink(temporary.c_str());
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
    if (::unlink(path.c_str()) == 0) {
      removed += entry ? 1 : 0;
    } else if (errno != ENOENT) {  // another process was quicker
      failed = path + ": " + std::strerror(errno);
    }
  }
  return removed;
}

}  // namespace attn::cuda
