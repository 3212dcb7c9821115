// Assembles a kernel from its parts; see include.hpp.
#include "webgpu/assemble/include.hpp"

#include <algorithm>
#include <set>

namespace attn::webgpu {
namespace {

constexpr std::string_view kDirective = "//!";
constexpr std::string_view kInclude = "//! include ";

class Assembly {
 public:
  Assembly(const ReadPart& read_part, std::string& error) : read_part_(read_part), error_(error) {}

  bool add(std::string_view name, std::string_view text) {
    int number = 0;
    while (!text.empty()) {
      const std::size_t end = std::min(text.find('\n'), text.size() - 1) + 1;
      const std::string_view line = text.substr(0, end);
      text.remove_prefix(end);
      ++number;
      const bool added = line.starts_with(kDirective) ? include(name, number, line) : append(line);
      if (!added) return false;
    }
    return true;
  }

  std::string take() { return std::move(text_); }

 private:
  bool append(std::string_view line) {
    text_.append(line);
    return true;
  }

  bool fail(std::string_view name, int number, const std::string& found) {
    error_ = std::string(name) + ".wgsl:" + std::to_string(number) + ": " + found;
    return false;
  }

  bool include(std::string_view name, int number, std::string_view line) {
    const std::string_view end = line.ends_with('\n') ? "\n" : "";
    const std::string directive(line.substr(0, line.size() - end.size()));
    if (!line.starts_with(kInclude) || directive.size() == kInclude.size()) {
      return fail(name, number, "'" + directive + "' is no directive; '//! include NAME' is one");
    }
    const std::string part = directive.substr(kInclude.size());
    if (!seen_.insert(part).second) return true;
    const std::optional<std::string> text = read_part_(part);
    if (!text) return fail(name, number, "there is no part include/" + part + ".wgsl");
    return add("include/" + part, *text);
  }

  const ReadPart& read_part_;
  std::string& error_;
  std::string text_;
  std::set<std::string> seen_;
};

}  // namespace

std::string assembled(std::string_view name, std::string_view source, const ReadPart& read_part,
                      std::string& error) {
  error.clear();
  Assembly assembly(read_part, error);
  return assembly.add(name, source) ? assembly.take() : std::string();
}

}  // namespace attn::webgpu
