// The kernels' assembled sources, embedded when libattn is built. A source is named as its file in
// src/webgpu/kernels, without ".wgsl"; kernels with marked loops have a second source with these
// loops written out, named "unrolled/" and the kernel's name.
#pragma once

#include <span>
#include <string_view>

namespace attn::webgpu {

inline constexpr std::string_view kUnrolled = "unrolled/";

struct Source {
  std::string_view name;
  std::string_view text;
};

// All of them, sorted by name. Defined in the generated file.
std::span<const Source> kernel_sources();

}  // namespace attn::webgpu
