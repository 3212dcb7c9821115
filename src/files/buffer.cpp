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

std::string write_pieces(const std::string& path,
                         std::span<const std::span<const std::byte>> pieces) {
  FILE* stream = std::fopen(path.c_str(), "wb");
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

}  // namespace

std::string write_file(const std::string& path,
                       std::span<const std::span<const std::byte>> pieces) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (std::filesystem::is_directory(status)) return path + ": is a directory";
  // A device or pipe can't be renamed over.
  const bool direct = std::filesystem::exists(status) && !std::filesystem::is_regular_file(status);
  const std::string target = direct ? path : path + ".part";
  std::string problem = write_pieces(target, pieces);
  if (problem.empty() && !direct) {
    std::filesystem::rename(target, path, error);
    if (error) problem = error.message();
  }
  if (problem.empty()) return "";
  if (!direct) std::filesystem::remove(target, error);
  return path + ": can't write: " + problem;
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
