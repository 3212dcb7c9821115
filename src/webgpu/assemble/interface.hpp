// Interface of a kernel: its parameters and bindings, read from the assembled WGSL. So parameters
// and binding numbers are defined in one place.
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

// Reads the interface of an assembled kernel. On failure `error` says what is missing or unknown.
Interface interface_of(std::string_view source, std::string& error);

// Returns a C++ structure with the layout of the WGSL uniform structure. Fails where WGSL would
// insert padding, because the C++ structure might not: the source then needs an explicit padding
// member.
std::string cpp_struct(const std::string& name, const Interface& interface, std::string& error);

}  // namespace attn::webgpu
