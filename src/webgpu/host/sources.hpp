// The assembled sources of the kernels, embedded at build time. A source has the name of its file
// in src/webgpu/kernels, without ".wgsl". A kernel with marked loops has a second source,
// "unrolled/NAME", with these loops unrolled.
#pragma once

#include <span>
#include <string_view>

namespace attn::webgpu {

inline constexpr std::string_view kUnrolled = "unrolled/";

struct Source {
  std::string_view name;
  std::string_view text;
};

// All sources, sorted by name. Generated.
std::span<const Source> kernel_sources();

enum class Access { read, write };  // var<storage, read>, var<storage, read_write>

// A storage buffer of a kernel. Two entry points of a source may use one number for different
// buffers.
struct BindingName {
  std::string_view source;
  std::string_view name;
  int number;  // from 1 on; 0 is the uniform with the parameters
  Access access;
};

// The bindings of all kernels, sorted by source. Generated.
std::span<const BindingName> binding_names();

}  // namespace attn::webgpu
