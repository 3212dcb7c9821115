// Linux and macOS; see platform.hpp.
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include "platform/platform.hpp"
#if defined(__APPLE__)
#include <crt_externs.h>
#endif
#if defined(__linux__)
#include <link.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#endif

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <new>
#include <stdexcept>

namespace attn::platform {

namespace fs = std::filesystem;

#if defined(__linux__)
void sleep_on(std::atomic<std::uint32_t>& word, std::uint32_t value) {
  static_assert(sizeof word == sizeof(std::uint32_t));
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}

void wake(std::atomic<std::uint32_t>& word, std::uint32_t sleepers) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, sleepers, nullptr, nullptr, 0);
}
#else
void sleep_on(std::atomic<std::uint32_t>& word, std::uint32_t value) {
  word.wait(value);
}

void wake(std::atomic<std::uint32_t>& word, std::uint32_t sleepers) {
  if (sleepers == 1) return word.notify_one();
  word.notify_all();
}
#endif

SignalsBlocked::SignalsBlocked() {
  static_assert(sizeof(sigset_t) <= sizeof before_);
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, ::new (before_) sigset_t);
}

SignalsBlocked::~SignalsBlocked() {
  pthread_sigmask(SIG_SETMASK, reinterpret_cast<const sigset_t*>(before_), nullptr);
}

void at_fork_in_child(void (*call)()) {
  pthread_atfork(nullptr, nullptr, call);
}

std::int32_t usable_processors() {
#if defined(__linux__)
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
#endif
  return 0;
}

std::string library_file(std::string_view name) {
#if defined(__APPLE__)
  constexpr std::string_view kSuffix = ".dylib";
#else
  constexpr std::string_view kSuffix = ".so";
#endif
  return std::string("lib").append(name).append(kSuffix);
}

void* open_library(const char* file, std::string& error) {
  void* library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* text = dlerror();
    error = text != nullptr ? text : file;
  }
  return library;
}

void close_library(void* library) {
  dlclose(library);
}

void* find_symbol(void* library, const char* name) {
  return dlsym(library == nullptr ? RTLD_DEFAULT : library, name);
}

std::string file_of(const void* address) {
  Dl_info info{};
  const bool known = dladdr(address, &info) != 0 && info.dli_fname != nullptr;
  return known ? info.dli_fname : "";
}

std::string own_folder() {
  static const char kHere = 0;
  const std::string here = file_of(&kHere);
  std::error_code error;
  const fs::path file = here.empty() ? fs::path() : fs::canonical(here, error);
  return error ? std::string() : file.parent_path().string();
}

#if defined(__linux__)
// Stops at the first library: about 25 ns.
std::uint64_t libraries_added() {
  std::uint64_t adds = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* library, std::size_t, void* found) {
        *static_cast<std::uint64_t*>(found) = library->dlpi_adds;
        return 1;
      },
      &adds);
  return adds;
}

std::string find_loaded(bool (*matches)(std::string_view path)) {
  struct Search {
    bool (*matches)(std::string_view path);
    std::string path;
  } search{matches, {}};
  dl_iterate_phdr(
      [](dl_phdr_info* library, std::size_t, void* data) {
        Search& one = *static_cast<Search*>(data);
        if (library->dlpi_name == nullptr || !one.matches(library->dlpi_name)) return 0;
        one.path = library->dlpi_name;
        return 1;
      },
      &search);
  return search.path;
}

void* keep_loaded(const std::string& path) {
  return dlopen(path.c_str(), RTLD_NOLOAD | RTLD_NODELETE | RTLD_LAZY);
}
#else
std::uint64_t libraries_added() {
  return 0;
}

std::string find_loaded(bool (*)(std::string_view path)) {
  return {};
}

void* keep_loaded(const std::string&) {
  return nullptr;
}
#endif

std::optional<std::string> read_file(const std::string& path, std::int64_t most_bytes) {
  // Not blocking, so that a pipe in the folder holds nobody up.
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return std::nullopt;
  struct stat about{};
  std::string bytes;
  bool good = ::fstat(file, &about) == 0 && S_ISREG(about.st_mode) && about.st_size <= most_bytes;
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

bool write_new_file(const std::string& path, std::string_view bytes) {
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

bool make_private_folder(const std::string& path) {
  const fs::path folder(path);
  std::error_code error;
  if (fs::is_directory(folder, error)) return true;
  if (folder.has_parent_path() && folder.parent_path() != folder &&
      !make_private_folder(folder.parent_path())) {
    return false;
  }
  if (::mkdir(folder.c_str(), 0700) == 0) return true;
  const int why = errno;
  if (fs::is_directory(folder, error)) return true;  // another process was quicker
  errno = why == EEXIST ? ENOTDIR : why;
  return false;
}

bool remove_file(const std::string& path) {
  return ::unlink(path.c_str()) == 0;
}

bool replace_file(const std::string& from, const std::string& to) {
  return ::rename(from.c_str(), to.c_str()) == 0;
}

std::string cache_folder(std::string_view name) {
  const auto below = [&](const char* variable, const char* folder) -> std::string {
    const char* root = std::getenv(variable);
    if (root == nullptr || *root == '\0') return {};
    return std::string(root).append(folder).append("/").append(name);
  };
  if (std::string found = below("XDG_CACHE_HOME", ""); !found.empty()) return found;
  return below("HOME", "/.cache");
}

std::int32_t process_id() {
  return ::getpid();
}

bool stderr_is_terminal() {
  return ::isatty(STDERR_FILENO) != 0;
}

int silence_stderr() {
  const int kept = ::dup(STDERR_FILENO);
  const int null = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  if (kept >= 0 && null >= 0) ::dup2(null, STDERR_FILENO);
  if (null >= 0) ::close(null);
  return kept;
}

void restore_stderr(int kept) {
  if (kept < 0) return;
  ::dup2(kept, STDERR_FILENO);
  ::close(kept);
}

std::string system_name() {
  utsname name{};
  if (uname(&name) != 0) return {};
  return std::string(name.sysname) + " " + name.release;
}

std::string machine_name() {
  utsname name{};
  return uname(&name) == 0 ? name.machine : "unknown";
}

std::string processor_name() {
  std::FILE* file = std::fopen("/proc/cpuinfo", "r");
  if (file == nullptr) return machine_name();
  constexpr std::string_view kField = "model name";
  std::string name;
  char line[256];
  while (name.empty() && std::fgets(line, sizeof(line), file) != nullptr) {
    const std::string_view text = line;
    const std::size_t colon = text.find(':');
    if (!text.starts_with(kField) || colon == std::string_view::npos) continue;
    const std::size_t first = text.find_first_not_of(" \t\n", colon + 1);
    if (first == std::string_view::npos) break;
    name = text.substr(first, text.find_last_not_of(" \t\n") + 1 - first);
  }
  std::fclose(file);
  return name.empty() ? machine_name() : name;
}

std::int32_t online_processors() {
  return static_cast<std::int32_t>(::sysconf(_SC_NPROCESSORS_ONLN));
}

std::string output_of(const std::string& command) {
  std::FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return {};
  std::string out;
  std::array<char, 256> buffer{};
  while (std::fgets(buffer.data(), buffer.size(), pipe) != nullptr) out += buffer.data();
  return ::pclose(pipe) == 0 ? out : std::string();
}

namespace {

// The variables of this process. macOS has no `environ` in libraries.
char** environment() {
#if defined(__APPLE__)
  return *_NSGetEnviron();
#else
  return environ;
#endif
}

// Starts a program with these ends of pipes as its input and output. 0, or the error's number.
int spawn(char* const* arguments, int in, int out, pid_t& id) {
  posix_spawn_file_actions_t files;
  int error = posix_spawn_file_actions_init(&files);
  if (error != 0) return error;
  error = posix_spawn_file_actions_adddup2(&files, in, STDIN_FILENO);
  if (error == 0) error = posix_spawn_file_actions_adddup2(&files, out, STDOUT_FILENO);
  if (error == 0)
    error = posix_spawnp(&id, arguments[0], &files, nullptr, arguments, environment());
  posix_spawn_file_actions_destroy(&files);
  return error;
}

bool make_pipe(std::array<int, 2>& ends) {
#if defined(__linux__)
  return pipe2(ends.data(), O_CLOEXEC) == 0;
#else
  if (pipe(ends.data()) != 0) return false;
  for (const int end : ends) fcntl(end, F_SETFD, FD_CLOEXEC);
  return true;
#endif
}

}  // namespace

Child start_child(const std::vector<std::string>& arguments) {
  std::array<int, 2> request{};
  std::array<int, 2> answer{};
  if (!make_pipe(request)) throw std::runtime_error(std::strerror(errno));
  if (!make_pipe(answer)) {
    close(request[0]);
    close(request[1]);
    throw std::runtime_error(std::strerror(errno));
  }
  std::vector<char*> pointers;
  for (const std::string& word : arguments) pointers.push_back(const_cast<char*>(word.c_str()));
  pointers.push_back(nullptr);
  Child child;
  pid_t id = -1;
  int error = spawn(pointers.data(), request[0], answer[1], id);
  if (error == 0) child.id = id;
  close(request[0]);
  close(answer[1]);
  child.to = fdopen(request[1], "w");
  child.from = fdopen(answer[0], "r");
  if (child.to == nullptr || child.from == nullptr) error = error != 0 ? error : ENOMEM;
  if (error != 0) {
    end_child(child);
    throw std::runtime_error("starting " + arguments[0] + " failed: " + std::strerror(error));
  }
  // A child that dies shows as a missing answer, not as a signal to this process.
  signal(SIGPIPE, SIG_IGN);
  return child;
}

void end_child(Child& child) {
  if (child.to != nullptr) std::fclose(child.to);
  if (child.from != nullptr) std::fclose(child.from);
  if (child.id > 0) waitpid(static_cast<pid_t>(child.id), nullptr, 0);
  child = {};
}

}  // namespace attn::platform
