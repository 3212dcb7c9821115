// The kernels' sources, embedded when libattn is built. Their names are paths below
// src/cuda/kernels ("sm80/forward.cu"), which is also how they include each other.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.hpp"

namespace attn::cuda {

struct Source {
  std::string_view name;
  std::string_view text;  // followed by a null character
};

// The header that is generated from a Config; every kernel may include it.
inline constexpr std::string_view kConfigHeader = "config.cuh";

// All of them, sorted by name. Defined in the generated file.
std::span<const Source> kernel_sources();

// What NVRTC compiles: a source and all headers that it includes, directly or indirectly.
struct Unit {
  Source source;
  std::vector<Source> headers;  // sorted by name, without config.cuh
  std::string hash;             // of names and texts
};

// Returns invalid_argument if the source or a header that it includes does not exist. Conditions of
// the preprocessor are not evaluated, so disabled includes count.
core::Status make_unit(std::span<const Source> sources, std::string_view name, Unit& unit);
// The unit of a source in kernel_sources(), made once per process.
core::Status find_unit(std::string_view name, const Unit*& unit);

}  // namespace attn::cuda
