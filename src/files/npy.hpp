// Reads and writes .npy (NumPy enhancement proposal 1, format versions 1 to 3): little-endian, C
// order, plain numbers. The format has no bfloat16 and no f8. Nothing in a file is trusted.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "files/buffer.hpp"
#include "files/result.hpp"
#include "files/tensor.hpp"

namespace attn::files {

class NpyFile {
 public:
  // Both fail with one line that says what is wrong, in read() with the path in front.
  static Result<NpyFile> read(const std::string& path);
  // The content of a file; it is copied.
  static Result<NpyFile> parse(std::span<const std::byte> content);

  // Without a name. Valid as long as this object.
  [[nodiscard]] const FileTensor& tensor() const { return tensor_; }

 private:
  template <class Source>
  static Result<NpyFile> load(std::uint64_t size, Source& source);

  Buffer memory_;
  FileTensor tensor_;
};

// Returns the problem in one line, or "": a type that .npy lacks, or a file that can't be written.
std::string write_npy(const std::string& path, const FileTensor& tensor);

}  // namespace attn::files
