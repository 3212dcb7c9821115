// The .npy reader on arbitrary bytes: no access out of bounds, one printable line for every
// refusal, and nothing accepted whose size is not that of its type and shape.
#include <span>

#include "check_tensor.hpp"
#include "files/npy.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto file = attn::files::NpyFile::parse(std::as_bytes(std::span(data, size)));
  if (!file) {
    attn::fuzz::check_error(file.error());
    return 0;
  }
  volatile unsigned sum = attn::fuzz::check_tensor(file->tensor());
  (void)sum;
  return 0;
}
