// The kernels' sources, embedded when libattn is built. Their names are those of the files in
// src/webgpu/kernels without ".wgsl".
#pragma once

#include <span>
#include <string_view>

namespace attn::webgpu {

struct Source {
  std::string_view name;
  std::string_view text;
};

// All of them, sorted by name. Defined in the generated file.
std::span<const Source> kernel_sources();

}  // namespace attn::webgpu
