// Memory, and whole files read and written.
#include "files/buffer.hpp"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <limits>
#include <new>
#include <system_error>

namespace attn::files {

Result<Buffer> Buffer::allocate(std::uint64_t size) {
  Buffer buffer;
  const std::uint64_t limit = std::numeric_limits<std::ptrdiff_t>::max() - kAlignment;
  void* memory = nullptr;
  if (size <= limit) {
    memory =
        ::operator new(size == 0 ? kAlignment : size, std::align_val_t{kAlignment}, std::nothrow);
  }
  if (memory == nullptr) {
    return Result<Buffer>::failure("no memory for " + std::to_string(size) + " bytes");
  }
  buffer.memory_.reset(static_cast<std::byte*>(memory));
  buffer.size_ = size;
  return buffer;
}

void Buffer::Free::operator()(std::byte* memory) const {
  ::operator delete(memory, std::align_val_t{kAlignment});
}

void InputFile::Close::operator()(void* stream) const {
  std::fclose(static_cast<FILE*>(stream));
}

Result<InputFile> InputFile::open(const std::string& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) {
    return Result<InputFile>::failure(
        error && error != std::errc::no_such_file_or_directory ? error.message() : "no such file");
  }
  if (!std::filesystem::is_regular_file(status)) {
    return Result<InputFile>::failure("not a regular file");
  }
  InputFile file;
  file.size_ = std::filesystem::file_size(path, error);
  if (error) return Result<InputFile>::failure(error.message());
  file.stream_.reset(std::fopen(path.c_str(), "rb"));
  if (!file.stream_) return Result<InputFile>::failure(std::strerror(errno));
  return file;
}

bool InputFile::read(std::span<std::byte> out) {
  return out.empty() ||
         std::fread(out.data(), 1, out.size(), static_cast<FILE*>(stream_.get())) == out.size();
}

bool InputMemory::read(std::span<std::byte> out) {
  if (out.size() > rest_.size()) return false;
  if (!out.empty()) std::memcpy(out.data(), rest_.data(), out.size());
  rest_ = rest_.subspan(out.size());
  return true;
}

namespace {

// Writes the pieces and closes the stream.
std::string write_pieces(FILE* stream, std::span<const std::span<const std::byte>> pieces) {
  if (stream == nullptr) return std::strerror(errno);
  bool ok = true;
  for (const auto& piece : pieces) {
    ok =
        ok && (piece.empty() || std::fwrite(piece.data(), 1, piece.size(), stream) == piece.size());
  }
  const int write_error = errno;
  const bool closed = std::fclose(stream) == 0;
  if (!ok) return std::strerror(write_error);
  return closed ? "" : std::strerror(errno);
}

// The file that a symbolic link leads to, or would lead to; other paths as they are.
std::string without_links(std::filesystem::path path) {
  constexpr int kMostLinks = 40;
  std::error_code error;
  for (int n = 0; n < kMostLinks && std::filesystem::is_symlink(path, error); ++n) {
    path = path.parent_path() / std::filesystem::read_symlink(path, error);
  }
  return path.string();
}

// Makes a file next to `path` under a name that nothing has. On success sets `part` to its path.
FILE* open_part(const std::string& path, std::string& part) {
  constexpr int kMostNames = 1000;
  for (int n = 0; n < kMostNames; ++n) {
    const std::string name = path + ".part" + (n == 0 ? "" : std::to_string(n));
    FILE* stream = std::fopen(name.c_str(), "wbx");
    if (stream != nullptr) part = name;
    if (stream != nullptr || errno != EEXIST) return stream;
  }
  return nullptr;
}

}  // namespace

std::string write_file(const std::string& path,
                       std::span<const std::span<const std::byte>> pieces) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (std::filesystem::is_directory(status)) return path + ": is a directory";
  std::string problem;
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    problem = write_pieces(std::fopen(path.c_str(), "wb"), pieces);  // a device or pipe
  } else {
    const std::string target = without_links(path);
    std::string part;
    problem = write_pieces(open_part(target, part), pieces);
    if (problem.empty()) {
      std::filesystem::rename(part, target, error);
      if (error) problem = error.message();
    }
    if (!problem.empty() && !part.empty()) std::filesystem::remove(part, error);
  }
  return problem.empty() ? "" : path + ": can't write: " + problem;
}

std::string printable(const std::string& text) {
  constexpr std::size_t kShown = 60;
  constexpr char kHex[] = "0123456789abcdef";
  std::string out = "'";
  for (const char c : text.substr(0, kShown)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f) {
      out += c;
    } else {
      out += "\\x";
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    }
  }
  return out + (text.size() > kShown ? "...'" : "'");
}

}  // namespace attn::files
