// What must hold for every tensor that a reader accepted; aborts when it doesn't.
#pragma once

#include <cstdint>
#include <cstdlib>

#include "files/buffer.hpp"
#include "files/convert.hpp"
#include "files/tensor.hpp"

namespace attn::fuzz {

inline void require(bool holds) {
  if (!holds) std::abort();
}

// Errors are one line of printable ASCII.
inline void check_error(const std::string& error) {
  require(!error.empty() && error.size() < 1000);
  for (const char c : error) require(c >= 0x20 && c < 0x7f);
}

// Size as type and shape say, aligned, every byte readable. Returns a sum so that the reads stay.
inline unsigned check_tensor(const files::FileTensor& tensor) {
  const auto bytes = files::tensor_bytes(tensor.shape, files::element_bytes(tensor.dtype));
  require(bytes.has_value() && *bytes == tensor.data.size());
  require(reinterpret_cast<std::uintptr_t>(tensor.data.data()) % files::kAlignment == 0);
  unsigned sum = 0;
  for (const std::byte value : tensor.data) sum += static_cast<unsigned>(value);
  for (const char* dtype : {"F32", "BF16", "I32"}) {
    const auto converted = files::convert(tensor, dtype);
    if (!converted) check_error(converted.error());
  }
  const auto seen = files::view(tensor);
  if (!seen) {
    check_error(seen.error());
    return sum;
  }
  std::int64_t elements = 1;
  for (int d = 0; d < seen->rank; ++d) elements *= seen->shape[static_cast<std::size_t>(d)];
  require(static_cast<std::uint64_t>(elements * files::element_bytes(tensor.dtype)) == *bytes);
  return sum;
}

}  // namespace attn::fuzz
