// Interface of a kernel: what the host must know of its source, read from the assembled WGSL, so
// that parameters and binding numbers are written down once.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace attn::webgpu {

struct StructMember {
  std::string name;
  std::string type;  // as in WGSL
};

struct BufferBinding {
  std::string name;
  int number = 0;  // from 1 on; two entry points may use one number for different buffers
  bool writes = false;
};

struct Interface {
  std::vector<BufferBinding> bindings;
  std::string parameters;  // name of the structure at binding 0
  std::map<std::string, std::vector<StructMember>> structs;
};

// Reads the interface of an assembled kernel. On failure `error` says what is missing or not known.
Interface interface_of(std::string_view source, std::string& error);

// A C++ structure with the layout that WGSL gives a uniform structure. Fails where WGSL would
// insert padding, which a C++ structure could miss: the source then needs a spare member.
std::string cpp_struct(const std::string& name, const Interface& interface, std::string& error);

}  // namespace attn::webgpu
