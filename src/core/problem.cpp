// Problem as text and as a key: to_string, parse_problem, hash_value, all over visit_fields.
#include <algorithm>
#include <attn/context.hpp>
#include <attn/problem.hpp>
#include <charconv>
#include <concepts>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "core/names.hpp"
#include "core/problem_fields.hpp"
#include "core/suggest.hpp"

namespace attn {

namespace {

constexpr Problem kDefaults{};

template <class T>
concept Enum = std::is_enum_v<T>;

struct ExtentLetter {
  char letter;
  bool Extent::* member;
};
constexpr ExtentLetter kExtentLetters[] = {
    {'b', &Extent::batch}, {'h', &Extent::head}, {'q', &Extent::q}, {'k', &Extent::kv}};

std::string print(bool value) {
  return value ? "on" : "off";
}

std::string print(std::int64_t value) {
  return std::to_string(value);
}

std::string print(const std::optional<std::int64_t>& value) {
  return value ? std::to_string(*value) : "none";
}

std::string print(Enum auto value) {
  return core::name_of(value);
}

std::string print(const Extent& extent) {
  if (!extent.given) return "none";
  std::string text;
  for (const auto& entry : kExtentLetters) {
    if (!(extent.*entry.member)) continue;
    text += entry.letter;
    if (entry.letter == 'b' && extent.per_entry != 1) text += "/" + print(extent.per_entry);
  }
  return text.empty() ? "1" : text;
}

// Each read() returns whether it could parse the entire text.
bool read(std::string_view text, bool& value) {
  value = text == "on" || text == "1";
  return value || text == "off" || text == "0";
}

bool read(std::string_view text, std::int64_t& value) {
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  return result.ec == std::errc{} && result.ptr == end;
}

bool read(std::string_view text, std::optional<std::int64_t>& value) {
  value.reset();
  return text == "none" || read(text, value.emplace());
}

template <Enum T>
bool read(std::string_view text, T& value) {
  const auto found = core::value_of<T>(text);
  if (found) value = *found;
  return found.has_value();
}

bool read(std::string_view text, Extent& extent) {
  extent = {};
  if (text == "none") return true;
  extent.given = true;
  if (text == "1") return true;
  if (text.empty()) return false;
  while (!text.empty()) {
    const char letter = text.front();
    text.remove_prefix(1);
    bool known = false;
    for (const auto& entry : kExtentLetters) {
      if (entry.letter != letter || extent.*entry.member) continue;
      extent.*entry.member = known = true;
    }
    if (!known) return false;
    if (letter != 'b' || !text.starts_with('/')) continue;
    const std::size_t digits = std::min(text.find_first_not_of("0123456789", 1), text.size());
    if (!read(text.substr(1, digits - 1), extent.per_entry) || extent.per_entry < 1) return false;
    text.remove_prefix(digits);
  }
  return true;
}

template <class T>
std::string accepted() {
  if constexpr (std::same_as<T, bool>) return "on or off";
  if constexpr (std::same_as<T, std::int64_t>) return "a whole number";
  if constexpr (std::same_as<T, std::optional<std::int64_t>>) return "a whole number or none";
  if constexpr (std::same_as<T, Extent>) return "letters of bhqk, b/N for b, 1 or none";
  if constexpr (Enum<T>) {
    std::string names;
    for (const auto& entry : core::names_of(T{})) {
      names += (names.empty() ? "" : ", ") + std::string(entry.name);
    }
    return names;
  }
}

[[noreturn]] void refuse(std::string_view word, const std::string& why) {
  throw Error(ErrorCode::invalid_argument,
              "parse_problem: word '" + std::string(word) + "': " + why);
}

void read_word(std::string_view word, Problem& problem) {
  const std::size_t equals = word.find('=');
  const std::string_view key = word.substr(0, equals);
  bool known = false;
  core::visit_fields([&](const char* name, auto member) {
    if (key != name) return;
    known = true;
    using Value = std::remove_reference_t<decltype(problem.*member)>;
    if (equals == std::string_view::npos) {
      if constexpr (std::same_as<Value, bool>) {
        problem.*member = true;
        return;
      }
      refuse(word, "has no value; accepted " + std::string(name) + "=" + accepted<Value>());
    }
    if (!read(word.substr(equals + 1), problem.*member)) {
      refuse(word, "can't be read; accepted " + accepted<Value>());
    }
  });
  if (known) return;
  std::vector<std::string> names;
  core::visit_fields([&](const char* name, auto) { names.emplace_back(name); });
  refuse(word, "is not a field of Problem" + core::did_you_mean(key, names));
}

// The finalizer of splitmix64 (Steele, Lea, Flood 2014).
constexpr std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// The value as hash input: equal values give equal words, other values rarely do.
template <class T>
std::uint64_t word_of(const T& value) {
  if constexpr (std::same_as<T, std::optional<std::int64_t>>) {
    return value ? static_cast<std::uint64_t>(*value) : 0x9E3779B97F4A7C15u;
  } else if constexpr (std::same_as<T, Extent>) {
    constexpr int kBits = 1 + static_cast<int>(std::size(kExtentLetters));
    std::uint64_t bits = value.given ? 1u : 0u;
    for (const auto& entry : kExtentLetters) bits = bits << 1 | (value.*entry.member ? 1u : 0u);
    return bits ^ (static_cast<std::uint64_t>(value.per_entry) - 1) << kBits;
  } else {
    return static_cast<std::uint64_t>(value);
  }
}

}  // namespace

const char* to_string(Pass pass) {
  return core::name_of(pass);
}

const char* to_string(ErrorCode code) {
  return core::name_of(code);
}

// A multilinear hash: each field is multiplied by its own constant. The products do not depend on
// each other, so the processor overlaps them.
std::size_t hash_value(const Problem& problem) {
  std::uint64_t sum = 0;
  std::uint64_t factor = 0x9E3779B97F4A7C15u;
  // Inlined, so that the compiler folds the factors into constants.
  core::visit_fields([&](const char*, auto member) __attribute__((always_inline)) {
    sum += word_of(problem.*member) * factor;
    factor = mix(factor) | 1;
  });
  return static_cast<std::size_t>(mix(sum));
}

std::string to_string(const Problem& problem) {
  std::string text;
  core::visit_fields([&](const char* name, auto member) {
    const auto& value = problem.*member;
    if (value == kDefaults.*member) return;
    if (!text.empty()) text += ' ';
    text += name;
    if constexpr (std::same_as<std::remove_cvref_t<decltype(value)>, bool>) {
      if (value) return;
    }
    text += '=';
    text += print(value);
  });
  return text;
}

Problem parse_problem(const std::string& text) {
  constexpr std::string_view kBlank = " \t\r\n";
  Problem problem;
  std::string_view rest = text;
  while (true) {
    const std::size_t begin = rest.find_first_not_of(kBlank);
    if (begin == std::string_view::npos) return problem;
    rest.remove_prefix(begin);
    const std::size_t end = std::min(rest.find_first_of(kBlank), rest.size());
    read_word(rest.substr(0, end), problem);
    rest.remove_prefix(end);
  }
}

}  // namespace attn
