// The .safetensors reader on arbitrary bytes: no access out of bounds, one printable line for every
// refusal, and nothing accepted but tensors that fill the data exactly.
#include <span>

#include "check_tensor.hpp"
#include "files/safetensors.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto content = std::as_bytes(std::span(data, size));
  const auto file = attn::files::SafetensorsFile::parse(content);
  if (!file) {
    attn::fuzz::check_error(file.error());
    return 0;
  }
  volatile unsigned sum = 0;
  std::size_t total = 0;
  for (const auto& tensor : file->tensors()) {
    sum = sum + attn::fuzz::check_tensor(tensor);
    attn::fuzz::require(file->find(tensor.name) == &tensor);
    total += tensor.data.size();
  }
  std::uint64_t header_bytes = 0;
  for (int n = 7; n >= 0; --n) header_bytes = header_bytes << 8 | data[n];
  attn::fuzz::require(total + header_bytes + 8 == size);
  return 0;
}
