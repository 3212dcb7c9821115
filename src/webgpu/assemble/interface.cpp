// Reads the interface of a kernel; see interface.hpp.
#include "webgpu/assemble/interface.hpp"

#include <cstddef>
#include <regex>

namespace attn::webgpu {
namespace {

using Match = std::smatch;

struct Type {
  const char* cpp;
  std::size_t size, alignment;
};

// WGSL, section 14.4.1.
const std::map<std::string, Type>& scalar_types() {
  static const std::map<std::string, Type> types{
      {"u32", {"std::uint32_t", 4, 4}},
      {"i32", {"std::int32_t", 4, 4}},
      {"f32", {"float", 4, 4}},
      {"vec2<u32>", {"std::array<std::uint32_t, 2>", 8, 8}},
      {"vec4<u32>", {"std::array<std::uint32_t, 4>", 16, 16}}};
  return types;
}

template <class Use>
void for_each(const std::string& text, const char* pattern, Use&& use) {
  const std::regex regex(pattern);
  for (std::sregex_iterator at(text.begin(), text.end(), regex), end; at != end; ++at) use(*at);
}

// Bytes of a structure without padding.
std::size_t size_of(const std::vector<StructMember>& members) {
  std::size_t size = 0;
  for (const StructMember& member : members) {
    const auto found = scalar_types().find(member.type);
    size += found == scalar_types().end() ? 0 : found->second.size;
  }
  return size;
}

}  // namespace

Interface interface_of(std::string_view source, std::string& error) {
  const std::string text =
      std::regex_replace(std::string(source), std::regex("//[^\n]*"), std::string());
  Interface interface;
  for_each(text, R"(struct (\w+) \{([^}]*)\})", [&](const Match& structure) {
    std::vector<StructMember>& members = interface.structs[structure[1]];
    for_each(structure[2], R"((\w+): ([\w<>]+),)",
             [&](const Match& member) { members.push_back({member[1], member[2]}); });
  });
  for_each(text, R"(@group\(0\) @binding\(0\) var<uniform> \w+: (\w+);)",
           [&](const Match& match) { interface.parameters = match[1]; });
  for_each(
      text, R"(@group\(0\) @binding\((\d+)\) var<storage, (read|read_write)> (\w+):)",
      [&](const Match& match) {
        interface.bindings.push_back({match[3], std::stoi(match[1]), match[2] == "read_write"});
      });
  if (interface.structs.find(interface.parameters) == interface.structs.end()) {
    error = "has no structure of parameters at binding 0";
  }
  return interface;
}

std::string cpp_struct(const std::string& name, const Interface& interface, std::string& error) {
  std::string members;
  std::string checks;
  std::size_t offset = 0;
  for (const StructMember& member : interface.structs.at(name)) {
    const auto scalar = scalar_types().find(member.type);
    const auto nested = interface.structs.find(member.type);
    const bool is_nested = scalar == scalar_types().end();
    if (is_nested && nested == interface.structs.end()) {
      error = "has a member of a type that the host does not know: " + member.type;
      return {};
    }
    // A structure in a uniform one begins and ends at multiples of 16 bytes.
    const std::size_t size = is_nested ? size_of(nested->second) : scalar->second.size;
    const std::size_t alignment = is_nested ? 16 : scalar->second.alignment;
    if (offset % alignment != 0 || (is_nested && size % 16 != 0)) {
      error = name + "." + member.name + " needs a spare member before it: its offset is " +
              std::to_string(offset) + ", its alignment " + std::to_string(alignment);
      return {};
    }
    const std::string type = is_nested ? member.type : scalar->second.cpp;
    members.append("  " + type + " " + member.name + "{};\n");
    checks.append("static_assert(offsetof(" + name + ", " + member.name +
                  ") == " + std::to_string(offset) + ");\n");
    offset += size;
  }
  return "struct " + name + " {\n" + members + "};\n" + checks + "\n";
}

}  // namespace attn::webgpu
