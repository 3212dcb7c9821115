// Prints and parses cases.
#include "case.hpp"

#include <array>
#include <charconv>
#include <cstring>
#include <functional>
#include <sstream>
#include <type_traits>
#include <vector>

#include "core/suggest.hpp"

namespace attn::harness {
namespace {

[[noreturn]] void refuse(const std::string& word, const std::string& why) {
  throw Error(ErrorCode::invalid_argument, "parse_case: \"" + word + "\": " + why);
}

template <class T>
T number(const std::string& word, const std::string& text) {
  T value{};
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  if (result.ec != std::errc{} || result.ptr != end) refuse(word, "expected a number");
  return value;
}

std::string print(double value) {
  std::array<char, 64> text{};
  const auto result = std::to_chars(text.data(), text.data() + text.size(), value);
  return {text.data(), result.ptr};
}

constexpr std::array kPasses{"forward", "backward", "decode"};
constexpr std::array kMemories{"bshd", "bhsd", "fused_qkv", "sliced", "padded"};
constexpr std::array kExpanded{"none", "heads", "batch"};
constexpr std::array kLengths{"full", "varied", "zero", "hostile", "gaps"};
constexpr std::array kRanges{"documents", "random", "empty"};
constexpr std::array kSinks{"normal", "minus_inf", "plus_inf"};
constexpr std::array kPlanted{"none", "nan_q", "nan_v", "inf_k", "nan_dout"};

// One key of the text: printing (empty at its default) and parsing.
struct Field {
  const char* key;
  std::function<std::string(const Case&)> print;
  std::function<void(Case&, const std::string& word, const std::string& value)> read;
};

template <class Enum, std::size_t N>
Field choice(const char* key, Enum Case::* member, const std::array<const char*, N>& names) {
  return {key,
          [member, &names](const Case& c) -> std::string {
            return c.*member == Enum{} ? "" : names[static_cast<std::size_t>(c.*member)];
          },
          [member, &names](Case& c, const std::string& word, const std::string& value) {
            for (std::size_t n = 0; n < N; ++n) {
              if (value == names[n]) {
                c.*member = static_cast<Enum>(n);
                return;
              }
            }
            std::string known;
            for (const char* name : names) known += std::string(" ") + name;
            refuse(word, "expected one of" + known);
          }};
}

template <class Get>
Field real(const char* key, Get get, double standard) {
  return {key,
          [get, standard](const Case& c) -> std::string {
            const double value = get(const_cast<Case&>(c));
            return value == standard ? "" : print(value);
          },
          [get](Case& c, const std::string& word, const std::string& value) {
            get(c) = number<double>(word, value);
          }};
}

template <class Get>
Field integer(const char* key, Get get) {
  return {key,
          [get](const Case& c) -> std::string {
            const std::int64_t value = get(const_cast<Case&>(c));
            return value == 0 ? "" : std::to_string(value);
          },
          [get](Case& c, const std::string& word, const std::string& value) {
            get(c) = number<std::int64_t>(word, value);
          }};
}

const std::vector<Field>& fields() {
  static const std::vector<Field> table{
      {"name", [](const Case& c) { return c.name; },
       [](Case& c, const std::string&, const std::string& value) { c.name = value; }},
      {"seed", [](const Case& c) { return std::to_string(c.seed); },
       [](Case& c, const std::string& word, const std::string& value) {
         c.seed = number<std::uint64_t>(word, value);
       }},
      choice("memory", &Case::memory, kMemories),
      choice("expanded", &Case::expanded, kExpanded),
      choice("lengths", &Case::lengths, kLengths),
      choice("ranges", &Case::ranges, kRanges),
      choice("sinks", &Case::sinks, kSinks),
      choice("planted", &Case::planted, kPlanted),
      {"slopes_per_batch",
       [](const Case& c) -> std::string { return c.slopes_per_batch ? "1" : ""; },
       [](Case& c, const std::string& word, const std::string& value) {
         c.slopes_per_batch = number<int>(word, value) != 0;
       }},
      {"device_seed", [](const Case& c) -> std::string { return c.device_seed ? "1" : ""; },
       [](Case& c, const std::string& word, const std::string& value) {
         c.device_seed = number<int>(word, value) != 0;
       }},
      real(
          "value_scale", [](Case& c) -> double& { return c.value_scale; }, 1.0),
      real(
          "mask_density", [](Case& c) -> double& { return c.mask_density; }, 0.75),
      real(
          "bias_hidden", [](Case& c) -> double& { return c.bias_hidden; }, 0.0),
      real(
          "pages_missing", [](Case& c) -> double& { return c.pages_missing; }, 0.0),
      {"scale", [](const Case& c) { return c.scale ? print(*c.scale) : std::string{}; },
       [](Case& c, const std::string& word, const std::string& value) {
         c.scale = number<double>(word, value);
       }},
      real(
          "softcap", [](Case& c) -> double& { return c.softcap; }, 0.0),
      real(
          "dropout_p", [](Case& c) -> double& { return c.dropout_p; }, 0.0),
      {"diag", [](const Case& c) { return c.diag ? std::to_string(*c.diag) : std::string{}; },
       [](Case& c, const std::string& word, const std::string& value) {
         c.diag = number<std::int64_t>(word, value);
       }},
      integer("origin_batch", [](Case& c) -> std::int64_t& { return c.origin.batch; }),
      integer("origin_head", [](Case& c) -> std::int64_t& { return c.origin.head; }),
      integer("origin_q", [](Case& c) -> std::int64_t& { return c.origin.q; }),
      integer("origin_kv", [](Case& c) -> std::int64_t& { return c.origin.kv; }),
      integer("origin_heads_q", [](Case& c) -> std::int64_t& { return c.origin.heads_q; }),
      real(
          "rope_base", [](Case& c) -> double& { return c.rope_base; }, 10000.0),
      integer("rope_pos_offset", [](Case& c) -> std::int64_t& { return c.rope_pos_offset; }),
  };
  return table;
}

}  // namespace

std::string to_string(const Case& c) {
  std::string text = kPasses[static_cast<std::size_t>(c.pass)];
  for (const Field& field : fields()) {
    const std::string value = field.print(c);
    if (!value.empty()) text += std::string(" ") + field.key + "=" + value;
  }
  return text + " : " + attn::to_string(c.problem);
}

Case parse_case(const std::string& text) {
  const std::size_t colon = text.find(':');
  if (colon == std::string::npos) refuse(text, "expected \"pass key=value ... : problem\"");
  Case c;
  std::istringstream words(text.substr(0, colon));
  std::string word;
  bool has_pass = false;
  while (words >> word) {
    const std::size_t equals = word.find('=');
    if (equals == std::string::npos) {
      has_pass = false;
      for (std::size_t n = 0; n < kPasses.size(); ++n) {
        if (word != kPasses[n]) continue;
        c.pass = static_cast<Pass>(n);
        has_pass = true;
      }
      if (!has_pass) refuse(word, "expected forward, backward or decode");
      continue;
    }
    bool known = false;
    for (const Field& field : fields()) {
      if (word.compare(0, equals, field.key) != 0) continue;
      field.read(c, word, word.substr(equals + 1));
      known = true;
    }
    if (known) continue;
    std::vector<std::string> keys;
    for (const Field& field : fields()) keys.emplace_back(field.key);
    refuse(word, "no such key" + core::did_you_mean(word.substr(0, equals), keys));
  }
  if (!has_pass) refuse(text, "the pass is missing");
  c.problem = attn::parse_problem(text.substr(colon + 1));
  return c;
}

bool Case::operator==(const Case& other) const {
  return to_string(*this) == to_string(other);
}

}  // namespace attn::harness
