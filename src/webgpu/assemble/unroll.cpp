// Implements unroll.hpp.
#include "webgpu/assemble/unroll.hpp"

#include <algorithm>
#include <charconv>
#include <optional>

namespace attn::webgpu {
namespace {

constexpr std::string_view kFor = "for (var ";
constexpr std::string_view kMark = "{  // unrolled";
constexpr std::string_view kTo = " to ";

// Parses the number that a text begins with.
std::optional<unsigned> number_of(std::string_view text) {
  unsigned value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() ? std::optional(value) : std::nullopt;
}

// The first line of a marked loop.
struct Head {
  std::string_view variable;
  std::string_view limit;
  unsigned copies = 0;
  bool conditional = false;  // the limit may be below `copies`
};

std::optional<Head> head_of(std::string_view line) {
  const std::size_t start = line.find(kFor);
  const std::size_t mark = line.find(kMark);
  if (start == std::string_view::npos || mark == std::string_view::npos) return std::nullopt;
  const std::string_view name = line.substr(start + kFor.size());
  Head head;
  head.variable = name.substr(0, name.find(' '));
  const std::string variable(head.variable);
  const std::string before = variable + " = 0u; " + variable + " < ";
  const std::size_t end = name.find("; " + variable + " += 1u)");
  if (!name.starts_with(before) || end == std::string_view::npos) return std::nullopt;
  head.limit = name.substr(before.size(), end - before.size());
  const std::string_view rest = line.substr(mark + kMark.size());
  head.conditional = rest.starts_with(kTo);
  const auto copies = number_of(head.conditional ? rest.substr(kTo.size()) : head.limit);
  if (!copies) return std::nullopt;
  head.copies = *copies;
  return head;
}

// Joins lines into one and removes comments.
std::string flat(std::string_view text) {
  std::string line;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view code = text.substr(0, std::min(end, text.find("//")));
    const std::size_t first = std::min(code.find_first_not_of(' '), code.size());
    line.append(code.substr(first)).append(" ");
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return line;
}

// Number of characters up to the `}` that closes the block. Assumes that comments have no braces.
std::size_t body_size(std::string_view text) {
  int depth = 1;
  for (std::size_t at = 0; at < text.size(); ++at) {
    depth += text[at] == '{' ? 1 : text[at] == '}' ? -1 : 0;
    if (depth == 0) return at;
  }
  return text.size();
}

std::string copy_of(const Head& head, unsigned n, std::string_view body) {
  const std::string number = std::to_string(n) + "u";
  std::string copy;
  if (head.conditional) copy.append("if (" + number + " < ").append(head.limit).append(") ");
  copy.append("{ const ").append(head.variable).append(" = " + number + "; ");
  return copy.append(body).append("}");
}

}  // namespace

std::string unrolled(std::string_view source) {
  std::string text;
  while (true) {
    const std::size_t mark = source.find(kMark);
    if (mark == std::string_view::npos) return text.append(source);
    const std::size_t start = source.rfind('\n', mark) + 1;  // 0 if this is the first line
    const std::size_t end = std::min(source.find('\n', mark), source.size());
    const std::optional<Head> head = head_of(source.substr(start, end - start));
    if (!head) {  // not in the form above: the loop is kept
      text.append(source.substr(0, end));
      source.remove_prefix(end);
      continue;
    }
    text.append(source.substr(0, start));
    const std::string_view rest = source.substr(mark + 1);
    const std::string body =
        unrolled(rest.substr(end - mark - 1, body_size(rest) - (end - mark - 1)));
    text.append(copy_of(*head, 0, body));
    const std::string line = flat(body);
    for (unsigned n = 1; n < head->copies; ++n) text.append(" ").append(copy_of(*head, n, line));
    source = rest.substr(std::min(body_size(rest) + 1, rest.size()));
  }
}

}  // namespace attn::webgpu
