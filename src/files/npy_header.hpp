// The header of a .npy file: a Python dictionary literal, checked.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "files/result.hpp"

namespace attn::files {

struct NpyHeader {
  std::string dtype;  // safetensors' spelling
  std::vector<std::int64_t> shape;
};

// The longest header that is accepted; NumPy's own limit is 10000.
inline constexpr std::uint64_t kMaxNpyHeader = 65536;

// `text` is what stands between the length field and the data.
Result<NpyHeader> parse_npy_header(std::string_view text);

// The inverse: the dictionary, without padding. Empty when .npy has no such type.
std::string npy_header_text(const NpyHeader& header);

}  // namespace attn::files
