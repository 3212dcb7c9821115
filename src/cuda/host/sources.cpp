// Units of embedded sources; see sources.hpp.
#include "cuda/host/sources.hpp"

#include <algorithm>
#include <map>
#include <mutex>

#include "cuda/host/hash.hpp"

namespace attn::cuda {
namespace {

const Source* find(std::span<const Source> sources, std::string_view name) {
  const auto found = std::find_if(sources.begin(), sources.end(),
                                  [&](const Source& source) { return source.name == name; });
  return found == sources.end() ? nullptr : &*found;
}

// The names in the lines `#include "name"`.
std::vector<std::string_view> includes_of(std::string_view text) {
  constexpr std::string_view kBlank = " \t";
  std::vector<std::string_view> names;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const auto skip = [&](std::string_view word) {
      line.remove_prefix(std::min(line.find_first_not_of(kBlank), line.size()));
      if (!line.starts_with(word)) return false;
      line.remove_prefix(word.size());
      return true;
    };
    if (!skip("#") || !skip("include") || !skip("\"")) continue;
    names.push_back(line.substr(0, line.find('"')));
  }
  return names;
}

}  // namespace

core::Status make_unit(std::span<const Source> sources, std::string_view name, Unit& unit) {
  const Source* main = find(sources, name);
  if (main == nullptr) {
    return core::Status::invalid("cuda: no kernel source is called " + std::string(name));
  }
  std::map<std::string_view, std::string_view> headers;
  std::vector<Source> open{*main};
  while (!open.empty()) {
    const Source source = open.back();
    open.pop_back();
    for (const std::string_view included : includes_of(source.text)) {
      if (included == kConfigHeader || headers.contains(included)) continue;
      const Source* header = find(sources, included);
      if (header == nullptr) {
        return core::Status::invalid("cuda: " + std::string(source.name) + " includes " +
                                     std::string(included) +
                                     ", which is not among the kernel sources");
      }
      headers.emplace(header->name, header->text);
      open.push_back(*header);
    }
  }
  std::string hashed;
  append_field(hashed, main->name);
  append_field(hashed, main->text);
  unit = {*main, {}, {}};
  for (const auto& [header, text] : headers) {
    unit.headers.push_back({header, text});
    append_field(hashed, header);
    append_field(hashed, text);
  }
  unit.hash = hash(hashed);
  return {};
}

core::Status find_unit(std::string_view name, const Unit*& unit) {
  static std::mutex mutex;
  static auto& units = *new std::map<std::string, Unit, std::less<>>;  // never freed
  const std::lock_guard<std::mutex> lock(mutex);
  auto found = units.find(name);
  if (found == units.end()) {
    Unit made;
    if (core::Status status = make_unit(kernel_sources(), name, made); !status.ok()) return status;
    found = units.emplace(std::string(name), std::move(made)).first;
  }
  unit = &found->second;
  return {};
}

}  // namespace attn::cuda
