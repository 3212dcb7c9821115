// The JSON header of a .safetensors file, checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "files/result.hpp"

namespace attn::files {

struct SafetensorsEntry {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;  // in the data
  std::uint64_t end = 0;
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  // by position; they tile [0, data_bytes) exactly
  std::map<std::string, std::string> metadata;
};

// Headers longer than this are refused, as by the format's own implementation.
inline constexpr std::uint64_t kMaxSafetensorsHeader = 100'000'000;
inline constexpr std::size_t kMaxFileRank = 32;

// `text` is the header, `data_bytes` what follows it in the file.
Result<SafetensorsHeader> parse_safetensors_header(std::span<const char> text,
                                                   std::uint64_t data_bytes);

}  // namespace attn::files
