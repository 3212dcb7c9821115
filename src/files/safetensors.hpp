// Reads and writes .safetensors: 8 bytes of little-endian header length, a JSON header, the data
// (https://huggingface.co/docs/safetensors, "Format"). Nothing in a file is trusted.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "files/buffer.hpp"
#include "files/result.hpp"
#include "files/tensor.hpp"

namespace attn::files {

using Metadata = std::map<std::string, std::string>;

class SafetensorsFile {
 public:
  // Both fail with one line that says what is wrong, in read() with the path in front. Accepted is
  // exactly what the format allows: tensors that fill the data without overlap or hole.
  static Result<SafetensorsFile> read(const std::string& path);
  // The content of a file; it is copied.
  static Result<SafetensorsFile> parse(std::span<const std::byte> content);

  // In the order of their data.
  [[nodiscard]] const std::vector<FileTensor>& tensors() const { return tensors_; }
  // Null when there is none of that name. Valid as long as this object.
  [[nodiscard]] const FileTensor* find(std::string_view name) const;
  // The header's "__metadata__".
  [[nodiscard]] const Metadata& metadata() const { return metadata_; }

 private:
  template <class Source>
  static Result<SafetensorsFile> load(std::uint64_t size, Source& source);

  Buffer memory_;
  std::vector<FileTensor> tensors_;
  Metadata metadata_;
};

// Returns the problem in one line, or "". Names must differ and data must have the size that type
// and shape say.
std::string write_safetensors(const std::string& path, std::span<const FileTensor> tensors,
                              const Metadata& metadata = {});

}  // namespace attn::files
