// What differs between operating systems, for the library and the command. posix.cpp is for Linux
// (glibc, musl) and macOS, windows.cpp for Windows; no other file of the library asks which one it
// is, but for AMX, which only Linux grants by a system call
// (src/cpu/kernels/tile_ops/amx_bf16.cpp).
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace attn::platform {

// --- Threads ---

// Sleeps while word holds value; may wake for no reason.
void sleep_on(std::atomic<std::uint32_t>& word, std::uint32_t value);
// Wakes at least this many of those that sleep on the word.
void wake(std::atomic<std::uint32_t>& word, std::uint32_t sleepers);

// While it lives, this thread and those that it starts take no signals.
class SignalsBlocked {
 public:
  SignalsBlocked();
  ~SignalsBlocked();
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  alignas(8) unsigned char before_[128] = {};  // a sigset_t
};

// Calls this in every child, on the thread that called fork. Nothing where processes can't fork.
void at_fork_in_child(void (*call)());

// Processors that this process may run on; 0 where that is unknown.
std::int32_t usable_processors();

// --- Libraries opened at run time ---

// "libNAME.so", "libNAME.dylib" or "NAME.dll".
std::string library_file(std::string_view name);
// Null, with the loader's message in error. Names of the library stay its own.
void* open_library(const char* file, std::string& error);
void close_library(void* library);
// Null where there is none. Library null: in everything that the process has loaded.
void* find_symbol(void* library, const char* name);
// The file that holds this function or variable; empty where it is unknown.
std::string file_of(const void* address);
// The folder of the file that holds this library's code; empty where it is unknown.
std::string own_folder();

// Counts the libraries that were loaded so far. Always 0 where they can't be listed.
std::uint64_t libraries_added();
// The path of the first loaded library that matches; empty where there is none.
std::string find_loaded(bool (*matches)(std::string_view path));
// A loaded library, which then stays loaded; null where it is not loaded.
void* keep_loaded(const std::string& path);

// --- Files. Errors are in errno. ---

// Nothing where this is no regular file of at most this many bytes.
std::optional<std::string> read_file(const std::string& path, std::int64_t most_bytes);
// Writes a file that does not exist yet; a part of it that was written is removed after an error.
bool write_new_file(const std::string& path, std::string_view bytes);
// Makes a folder for the user alone, and those that it lies in. True where it is there already.
bool make_private_folder(const std::string& path);
bool remove_file(const std::string& path);
// Renames a file in one step; a file that has the new name is replaced.
bool replace_file(const std::string& from, const std::string& to);
// The user's folder for files that can be made again, with a folder of this name in it; or empty.
std::string cache_folder(std::string_view name);

// --- Processes and the terminal, for the command ---

std::int32_t process_id();
bool stderr_is_terminal();
// Drops what this process writes to stderr. Returns what restore_stderr takes; -1 after an error.
int silence_stderr();
void restore_stderr(int kept);

// The system's name and release, "Linux 6.1.0", and that of the processor, "x86_64".
std::string system_name();
std::string machine_name();
// "Intel(R) Xeon(R) Processor"; as machine_name() where the system doesn't tell.
std::string processor_name();
std::int32_t online_processors();

// Runs a line of the shell. Its output; empty after an error.
std::string output_of(const std::string& command);

// A process that reads from `to` and writes to `from`.
struct Child {
  std::int64_t id = -1;
  std::FILE* to = nullptr;
  std::FILE* from = nullptr;
};
// arguments[0] is the program, looked for in PATH. Throws std::runtime_error.
Child start_child(const std::vector<std::string>& arguments);
// Closes both pipes and waits for its end.
void end_child(Child& child);

}  // namespace attn::platform
