// Constants of a kernel; see config.hpp.
#include "cuda/host/config.hpp"

#include <algorithm>
#include <attn/tensor.hpp>
#include <cassert>
#include <limits>

#include "core/names.hpp"

namespace attn::cuda {
namespace {

// FNV-1a of the name, mixed with the value.
std::size_t hash_of(std::string_view name, std::int64_t value) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  hash = (hash ^ static_cast<std::uint64_t>(value)) * 0x9e3779b97f4a7c15;
  return static_cast<std::size_t>(hash ^ hash >> 29);
}

}  // namespace

Config::Config(const char* source) : source_(source), hash_(hash_of(source, 0)) {}

Config& Config::set(const char* name, std::int64_t value) {
  core::ConfigEntry* const end = entries_.data() + size_;
  core::ConfigEntry* const at =
      std::lower_bound(entries_.data(), end, std::string_view(name),
                       [](const core::ConfigEntry& entry, std::string_view wanted) {
                         return std::string_view(entry.name) < wanted;
                       });
  if (at != end && std::string_view(at->name) == name) {
    hash_ += hash_of(name, value) - hash_of(name, at->value);
    at->value = value;
    return *this;
  }
  assert(size_ < kMaxConstants);  // for a kernel with more constants, raise kMaxConstants
  if (size_ == kMaxConstants) return *this;
  std::move_backward(at, end, end + 1);
  *at = {name, value};
  hash_ += hash_of(name, value);
  ++size_;
  return *this;
}

std::optional<std::int64_t> Config::get(std::string_view name) const {
  for (std::size_t i = 0; i < size_; ++i) {
    if (entries_[i].name == name) return entries_[i].value;
  }
  return std::nullopt;
}

bool Config::operator==(const Config& other) const {
  return hash_ == other.hash_ && size_ == other.size_ &&
         (source_ == other.source_ || std::string_view(source_) == other.source_) &&
         std::equal(entries_.begin(), entries_.begin() + static_cast<std::ptrdiff_t>(size_),
                    other.entries_.begin(),
                    [](const core::ConfigEntry& a, const core::ConfigEntry& b) {
                      return a.value == b.value &&
                             (a.name == b.name || std::string_view(a.name) == b.name);
                    });
}

std::string to_string(const Config& config) {
  std::string text = config.source();
  for (std::size_t i = 0; i < config.size(); ++i) {
    text.append(" ").append(config[i].name).append("=").append(std::to_string(config[i].value));
  }
  return text;
}

std::string header_text(const Config& config) {
  std::string text = "// What this kernel is compiled for.\n#pragma once\nnamespace config {\n";
  const auto add = [&](const char* name, std::int64_t value) {
    const bool small = value >= std::numeric_limits<std::int32_t>::min() &&
                       value <= std::numeric_limits<std::int32_t>::max();
    // C++ has no literals for the most negative numbers.
    std::string literal = std::to_string(value);
    if (value == std::numeric_limits<std::int64_t>::min()) literal = "-9223372036854775807ll - 1";
    if (value == std::numeric_limits<std::int32_t>::min()) literal = "-2147483647 - 1";
    text.append("inline constexpr ").append(small ? "int " : "long long ").append(name);
    text.append(" = ").append(literal).append(";\n");
  };
  for (const DType dtype : {DType::none, DType::f32, DType::f16, DType::bf16, DType::f64,
                            DType::f8e4m3, DType::f8e5m2, DType::i32, DType::u8, DType::i8}) {
    add(to_string(dtype)[0] == '?' ? "none" : to_string(dtype), static_cast<std::int64_t>(dtype));
  }
  for (const Precision precision : {Precision::tf32x3, Precision::tf32, Precision::ieee}) {
    add(core::name_of(precision), static_cast<std::int64_t>(precision));
  }
  for (std::size_t i = 0; i < config.size(); ++i) add(config[i].name, config[i].value);
  return text + "}  // namespace config\n";
}

}  // namespace attn::cuda
