// Builds the bytes of files for the tests, right or wrong as asked.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>

namespace attn::files::test {

inline std::span<const std::byte> bytes(const std::string& text) {
  return std::as_bytes(std::span(text));
}

inline std::string little_endian(std::uint64_t value, int width) {
  std::string out;
  for (int n = 0; n < width; ++n) out += static_cast<char>(value >> (8 * n) & 255);
  return out;
}

inline std::string safetensors(const std::string& header, std::size_t data_bytes) {
  return little_endian(header.size(), 8) + header + std::string(data_bytes, '\x3f');
}

inline std::string npy(const std::string& header, std::size_t data_bytes, int major = 1) {
  return std::string("\x93NUMPY") + static_cast<char>(major) + '\0' +
         little_endian(header.size(), major == 1 ? 2 : 4) + header +
         std::string(data_bytes, '\x3f');
}

// A file in the system's folder for temporary files, removed at the end.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& name)
      : path_((std::filesystem::temp_directory_path() /
               ("attn_files_test_" + std::to_string(::getpid()) + "_" + name))
                  .string()) {}
  ~TemporaryFile() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }
  void write(const std::string& content) const {
    std::ofstream(path_, std::ios::binary) << content;
  }
  [[nodiscard]] std::string read() const {
    std::ifstream stream(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }

 private:
  std::string path_;
};

}  // namespace attn::files::test
