// Tiles as text, "tile_q=128 tile_kv=64": the fields that a backend's visitor names, in its order.
#pragma once

#include <charconv>
#include <cstdint>
#include <limits>
#include <optional>
#include <sstream>
#include <string>
#include <type_traits>

namespace attn::tuned {

// visit_fields(visit) calls visit(name, pointer to member) for each field.
template <class Tiles, class VisitFields>
std::string tiles_text(const Tiles& tiles, const VisitFields& visit_fields) {
  std::string text;
  visit_fields([&](const char* name, auto field) {
    text.append(text.empty() ? "" : " ").append(name).append("=");
    text.append(std::to_string(std::int64_t{tiles.*field}));
  });
  return text;
}

// Null unless every field is there, in order and in its range, and nothing else.
template <class Tiles, class VisitFields>
std::optional<Tiles> parse_tiles_text(const std::string& text, const VisitFields& visit_fields) {
  Tiles tiles;
  std::istringstream words(text);
  bool good = true;
  visit_fields([&](const char* name, auto field) {
    using Field = std::remove_reference_t<decltype(tiles.*field)>;
    std::string word;
    words >> word;
    const std::string start = std::string(name) + "=";
    std::int64_t value = -1;
    const char* const end = word.data() + word.size();
    good = good && word.starts_with(start) &&
           std::from_chars(word.data() + start.size(), end, value).ptr == end;
    good = good && value >= 0 && value <= std::int64_t{std::numeric_limits<Field>::max()};
    if (good) tiles.*field = static_cast<Field>(value);
  });
  std::string rest;
  if (!good || words >> rest) return std::nullopt;
  return tiles;
}

}  // namespace attn::tuned
