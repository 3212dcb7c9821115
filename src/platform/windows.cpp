// Windows; see platform.hpp. What no part of the command needs there is left out: child processes.
#include "platform/platform.hpp"

#define WIN32_LEAN_AND_MEAN
#define NOMINMAX
#include <windows.h>
// After windows.h, which it needs.
#include <fcntl.h>
#include <io.h>
#include <process.h>
#include <psapi.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>

namespace attn::platform {

namespace fs = std::filesystem;

void sleep_on(std::atomic<std::uint32_t>& word, std::uint32_t value) {
  word.wait(value);
}

void wake(std::atomic<std::uint32_t>& word, std::uint32_t sleepers) {
  if (sleepers == 1) return word.notify_one();
  word.notify_all();
}

// Windows runs handlers of signals on threads of their own.
SignalsBlocked::SignalsBlocked() = default;
SignalsBlocked::~SignalsBlocked() = default;

void at_fork_in_child(void (*)()) {}

std::int32_t usable_processors() {
  DWORD_PTR process = 0;
  DWORD_PTR system = 0;
  if (GetProcessAffinityMask(GetCurrentProcess(), &process, &system) == 0) return 0;
  return std::popcount(static_cast<std::uint64_t>(process));
}

std::string library_file(std::string_view name) {
  return std::string(name).append(".dll");
}

namespace {

std::string last_error() {
  std::array<char, 512> text{};
  const DWORD code = GetLastError();
  const DWORD length =
      FormatMessageA(FORMAT_MESSAGE_FROM_SYSTEM | FORMAT_MESSAGE_IGNORE_INSERTS, nullptr, code, 0,
                     text.data(), static_cast<DWORD>(text.size()), nullptr);
  std::string out(text.data(), length);
  while (!out.empty() && (out.back() == '\n' || out.back() == '\r' || out.back() == '.')) {
    out.pop_back();
  }
  return out.empty() ? "error " + std::to_string(code) : out;
}

void* symbol_of(HMODULE module, const char* name) {
  return reinterpret_cast<void*>(GetProcAddress(module, name));
}

}  // namespace

void* open_library(const char* file, std::string& error) {
  // A library that is named by its path finds its own libraries next to itself.
  const bool is_path = std::string_view(file).find_first_of("/\\") != std::string_view::npos;
  HMODULE module = LoadLibraryExA(file, nullptr, is_path ? LOAD_WITH_ALTERED_SEARCH_PATH : 0);
  if (module == nullptr) error = std::string(file) + ": " + last_error();
  return module;
}

void close_library(void* library) {
  FreeLibrary(static_cast<HMODULE>(library));
}

void* find_symbol(void* library, const char* name) {
  if (library != nullptr) return symbol_of(static_cast<HMODULE>(library), name);
  std::array<HMODULE, 1024> modules{};
  DWORD bytes = 0;
  if (EnumProcessModules(GetCurrentProcess(), modules.data(), sizeof modules, &bytes) == 0) {
    return nullptr;
  }
  const std::size_t count = std::min(modules.size(), bytes / sizeof(HMODULE));
  for (std::size_t n = 0; n < count; ++n) {
    if (void* found = symbol_of(modules[n], name)) return found;
  }
  return nullptr;
}

std::string file_of(const void* address) {
  HMODULE module = nullptr;
  if (GetModuleHandleExA(
          GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS | GET_MODULE_HANDLE_EX_FLAG_UNCHANGED_REFCOUNT,
          static_cast<const char*>(address), &module) == 0) {
    return {};
  }
  std::array<char, 4096> path{};
  const DWORD length = GetModuleFileNameA(module, path.data(), static_cast<DWORD>(path.size()));
  return std::string(path.data(), length);
}

std::string own_folder() {
  static const char kHere = 0;
  return fs::path(file_of(&kHere)).parent_path().string();
}

std::uint64_t libraries_added() {
  return 0;
}

std::string find_loaded(bool (*)(std::string_view path)) {
  return {};
}

void* keep_loaded(const std::string&) {
  return nullptr;
}

std::optional<std::string> read_file(const std::string& path, std::int64_t most_bytes) {
  const int file = _open(path.c_str(), _O_RDONLY | _O_BINARY | _O_NOINHERIT);
  if (file < 0) return std::nullopt;
  const std::int64_t size = _filelengthi64(file);
  std::string bytes;
  bool good = size >= 0 && size <= most_bytes;
  if (good) bytes.resize(static_cast<std::size_t>(size));
  for (std::size_t at = 0; good && at < bytes.size();) {
    const std::size_t rest = std::min<std::size_t>(bytes.size() - at, 1 << 30);
    const int got = _read(file, bytes.data() + at, static_cast<unsigned>(rest));
    good = got > 0;
    if (good) at += static_cast<std::size_t>(got);
  }
  _close(file);
  if (!good) return std::nullopt;
  return bytes;
}

bool write_new_file(const std::string& path, std::string_view bytes) {
  const int file =
      _open(path.c_str(), _O_WRONLY | _O_CREAT | _O_EXCL | _O_BINARY | _O_NOINHERIT, _S_IWRITE);
  if (file < 0) return false;
  bool good = true;
  while (good && !bytes.empty()) {
    const std::size_t part = std::min<std::size_t>(bytes.size(), 1 << 30);
    const int done = _write(file, bytes.data(), static_cast<unsigned>(part));
    good = done > 0;
    if (good) bytes.remove_prefix(static_cast<std::size_t>(done));
  }
  good = _close(file) == 0 && good;
  if (!good) _unlink(path.c_str());
  return good;
}

// Folders of the user's profile are the user's alone already.
bool make_private_folder(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (fs::is_directory(path, error)) return true;
  errno = ENOTDIR;
  return false;
}

bool remove_file(const std::string& path) {
  return _unlink(path.c_str()) == 0;
}

bool replace_file(const std::string& from, const std::string& to) {
  std::error_code error;
  fs::rename(from, to, error);
  if (error) errno = error.default_error_condition().value();
  return !error;
}

std::string cache_folder(std::string_view name) {
  const char* root = std::getenv("LOCALAPPDATA");
  if (root == nullptr || *root == '\0') return {};
  return std::string(root).append("\\").append(name);
}

std::int32_t process_id() {
  return static_cast<std::int32_t>(GetCurrentProcessId());
}

bool stderr_is_terminal() {
  return _isatty(2) != 0;
}

int silence_stderr() {
  const int kept = _dup(2);
  const int null = _open("NUL", _O_WRONLY | _O_NOINHERIT);
  if (kept >= 0 && null >= 0) _dup2(null, 2);
  if (null >= 0) _close(null);
  return kept;
}

void restore_stderr(int kept) {
  if (kept < 0) return;
  _dup2(kept, 2);
  _close(kept);
}

std::string system_name() {
  return "Windows";
}

std::string machine_name() {
  const char* name = std::getenv("PROCESSOR_IDENTIFIER");
  return name != nullptr ? name : "unknown";
}

std::string processor_name() {
  return machine_name();
}

std::int32_t online_processors() {
  return static_cast<std::int32_t>(GetActiveProcessorCount(ALL_PROCESSOR_GROUPS));
}

std::string output_of(const std::string&) {
  return {};
}

Child start_child(const std::vector<std::string>& arguments) {
  throw std::runtime_error("starting " + arguments[0] + ": peers are not timed on Windows");
}

void end_child(Child& child) {
  child = {};
}

}  // namespace attn::platform
