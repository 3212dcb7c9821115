// Config: the source of a kernel and the named constants that it is compiled with. A plain value
// without heap memory, and the key of compiled kernels.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/plan.hpp"

namespace attn::cuda {

inline constexpr std::size_t kMaxConstants = 48;

class Config {
 public:
  Config() = default;
  // `source` is a name in kernel_sources(). All names must be string literals.
  explicit Config(const char* source);

  [[nodiscard]] const char* source() const { return source_; }
  // Adds or changes a constant. Names are C++ identifiers, as the kernel writes them.
  Config& set(const char* name, std::int64_t value);
  Config& set(const char* name, bool value) { return set(name, std::int64_t{value}); }
  Config& set(const char* name, int value) { return set(name, std::int64_t{value}); }
  [[nodiscard]] std::optional<std::int64_t> get(std::string_view name) const;

  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] const core::ConfigEntry& operator[](std::size_t i) const { return entries_[i]; }

  // Updated by set(), so that a call that looks up a kernel need not compute it.
  [[nodiscard]] std::size_t hash() const { return hash_; }
  // Compares source and constants. The order of set() does not matter.
  bool operator==(const Config& other) const;

 private:
  const char* source_ = "";
  std::array<core::ConfigEntry, kMaxConstants> entries_{};  // sorted by name
  std::size_t size_ = 0;
  std::size_t hash_ = 0;  // a sum over source and constants, so their order does not matter
};

// "sm80/forward.cu alibi=0 bias_type=0 blocks=2 ..."
std::string to_string(const Config& config);
// The text of config.cuh: the constants in namespace config, as int if they fit, else as long long,
// and the values of the element types (config::f16, ...).
std::string header_text(const Config& config);

}  // namespace attn::cuda

template <>
struct std::hash<attn::cuda::Config> {
  std::size_t operator()(const attn::cuda::Config& config) const { return config.hash(); }
};
