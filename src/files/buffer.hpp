// Buffer: owned memory that starts at a multiple of 64 bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "files/result.hpp"

namespace attn::files {

inline constexpr std::uint64_t kAlignment = 64;

// n rounded up to the next multiple of kAlignment; n must be at least kAlignment below 2^64.
constexpr std::uint64_t align_up(std::uint64_t n) {
  return (n + kAlignment - 1) / kAlignment * kAlignment;
}

class Buffer {
 public:
  Buffer() = default;
  // Uninitialized memory. Fails, without throwing, when there is not enough.
  static Result<Buffer> allocate(std::uint64_t size);

  [[nodiscard]] std::byte* data() const { return memory_.get(); }
  [[nodiscard]] std::uint64_t size() const { return size_; }

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  std::unique_ptr<std::byte, Free> memory_;
  std::uint64_t size_ = 0;
};

// A regular file that is read front to back in pieces of known size.
class InputFile {
 public:
  // Fails unless `path` is a readable regular file.
  static Result<InputFile> open(const std::string& path);
  [[nodiscard]] std::uint64_t size() const { return size_; }
  // The next out.size() bytes; false when the file ends first or can't be read.
  [[nodiscard]] bool read(std::span<std::byte> out);

 private:
  struct Close {
    void operator()(void* stream) const;
  };
  std::unique_ptr<void, Close> stream_;
  std::uint64_t size_ = 0;
};

// The same reading from memory.
class InputMemory {
 public:
  explicit InputMemory(std::span<const std::byte> content) : rest_(content) {}
  [[nodiscard]] bool read(std::span<std::byte> out);

 private:
  std::span<const std::byte> rest_;
};

// Writes a file under an unused name next to `path` and renames it when it is complete: no reader
// sees half a file, and a failure leaves the old one. If `path` is a symbolic link, its target is
// written. Returns the problem, or "".
std::string write_file(const std::string& path, std::span<const std::span<const std::byte>> pieces);

// The text as it may be shown on one line: quoted, cut at 60 bytes, anything not printable ASCII as
// \xNN.
std::string printable(const std::string& text);

}  // namespace attn::files
