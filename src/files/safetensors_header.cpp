// Reads the header as a stream of JSON events: nesting, duplicate keys and unexpected values are
// refused where they occur, and no JSON tree is built.
#include "files/safetensors_header.hpp"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <utility>

#include "files/buffer.hpp"
#include "files/tensor.hpp"

namespace attn::files {
namespace {

using nlohmann::json;

enum class Place { outside, root, metadata, entry, shape, offsets };

// Fields of a tensor's object, as bits.
constexpr unsigned kDtype = 1;
constexpr unsigned kShape = 2;
constexpr unsigned kOffsets = 4;
constexpr unsigned kAllFields = kDtype | kShape | kOffsets;

class HeaderEvents final : public nlohmann::json_sax<json> {
 public:
  SafetensorsHeader header;
  std::string problem;

  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("a boolean"); }
  bool binary(binary_t&) override { return unexpected("binary data"); }
  bool number_float(number_float_t, const string_t&) override {
    return unexpected("a number that is not an integer below 2^64");
  }
  bool number_integer(number_integer_t) override { return unexpected("a negative number"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ == Place::shape) return add_extent(value);
    if (place_ == Place::offsets && num_offsets_ < 2) {
      (num_offsets_ == 0 ? entry().begin : entry().end) = value;
      ++num_offsets_;
      return true;
    }
    return unexpected("a number");
  }

  bool string(string_t& value) override {
    if (place_ == Place::metadata) {
      header.metadata[key_] = value;
      return true;
    }
    if (place_ == Place::entry && field_ == kDtype) {
      if (element_bytes(value) == 0) return fail(where() + " has unknown type " + printable(value));
      entry().dtype = value;
      return true;
    }
    return unexpected("a string");
  }

  bool start_object(std::size_t) override {
    if (place_ == Place::outside) {
      place_ = Place::root;
      return true;
    }
    if (place_ != Place::root) return unexpected("an object");
    if (key_ == "__metadata__") {
      place_ = Place::metadata;
      return true;
    }
    place_ = Place::entry;
    header.entries.emplace_back();
    entry().name = key_;
    seen_ = field_ = 0;
    return true;
  }

  bool key(string_t& value) override {
    if (place_ == Place::entry) return start_field(value);
    if (place_ == Place::root && !names_.insert(value).second) {
      return fail("the name " + printable(value) + " appears twice");
    }
    if (place_ == Place::metadata && header.metadata.count(value) != 0) {
      return fail("the metadata key " + printable(value) + " appears twice");
    }
    key_ = value;
    return true;
  }

  bool end_object() override {
    if (place_ == Place::entry && seen_ != kAllFields) {
      return fail(where() + " lacks " +
                  ((seen_ & kDtype) == 0   ? "dtype"
                   : (seen_ & kShape) == 0 ? "shape"
                                           : "data_offsets"));
    }
    place_ = place_ == Place::root ? Place::outside : Place::root;
    return true;
  }

  bool start_array(std::size_t) override {
    if (place_ == Place::entry && field_ == kShape) {
      place_ = Place::shape;
      return true;
    }
    if (place_ == Place::entry && field_ == kOffsets) {
      place_ = Place::offsets;
      num_offsets_ = 0;
      return true;
    }
    return unexpected("an array");
  }

  bool end_array() override {
    if (place_ == Place::offsets && num_offsets_ != 2) {
      return fail(where() + " needs two data_offsets");
    }
    place_ = Place::entry;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    return fail("the header is not valid JSON at byte " + std::to_string(position));
  }

 private:
  SafetensorsEntry& entry() { return header.entries.back(); }

  bool fail(std::string text) {
    if (problem.empty()) problem = std::move(text);
    return false;
  }

  std::string where() {
    switch (place_) {
      case Place::outside: return "the header";
      case Place::root: return "the header's entry " + printable(key_);
      case Place::metadata: return "the metadata key " + printable(key_);
      default: return "tensor " + printable(entry().name);
    }
  }

  bool unexpected(const char* what) {
    return fail(where() + " holds " + what + " where the format has none");
  }

  bool start_field(const std::string& name) {
    field_ = name == "dtype"          ? kDtype
             : name == "shape"        ? kShape
             : name == "data_offsets" ? kOffsets
                                      : 0;
    if (field_ == 0) return fail(where() + " has the unknown field " + printable(name));
    if ((seen_ & field_) != 0) return fail(where() + " has " + name + " twice");
    seen_ |= field_;
    return true;
  }

  bool add_extent(std::uint64_t extent) {
    if (extent > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      return fail("a dimension of " + where() + " is above 2^63 - 1");
    }
    if (entry().shape.size() == kMaxFileRank) {
      return fail(where() + " has more than " + std::to_string(kMaxFileRank) + " dimensions");
    }
    entry().shape.push_back(static_cast<std::int64_t>(extent));
    return true;
  }

  Place place_ = Place::outside;
  std::string key_;
  std::unordered_set<std::string> names_;
  unsigned seen_ = 0;
  unsigned field_ = 0;
  int num_offsets_ = 0;
};

std::string range(const SafetensorsEntry& entry) {
  std::string text = "[";
  text += std::to_string(entry.begin) + ", " + std::to_string(entry.end);
  return text + "]";
}

// Offsets against shape and type, and against the data.
std::string check_entry(const SafetensorsEntry& entry, std::uint64_t data_bytes) {
  const std::string name = "tensor " + printable(entry.name);
  if (entry.begin > entry.end) return name + " has data_offsets " + range(entry) + " in reverse";
  if (entry.end > data_bytes) {
    return name + " has data_offsets " + range(entry) + " but the file holds " +
           std::to_string(data_bytes) + " bytes of data";
  }
  const auto bytes = tensor_bytes(entry.shape, element_bytes(entry.dtype));
  if (!bytes) return name + " has a shape whose size in bytes overflows";
  if (*bytes != entry.end - entry.begin) {
    return name + " needs " + std::to_string(*bytes) + " bytes by type and shape, data_offsets " +
           range(entry) + " span " + std::to_string(entry.end - entry.begin);
  }
  return "";
}

// `entries` sorted by position must tile the data.
std::string check_tiling(const std::vector<SafetensorsEntry>& entries, std::uint64_t data_bytes) {
  std::uint64_t at = 0;
  const SafetensorsEntry* before = nullptr;
  for (const SafetensorsEntry& entry : entries) {
    if (entry.begin < at) {
      return "tensors " + printable(before->name) + " and " + printable(entry.name) + " overlap";
    }
    if (entry.begin > at) {
      return "bytes " + std::to_string(at) + " to " + std::to_string(entry.begin) +
             " of the data belong to no tensor";
    }
    at = entry.end;
    before = &entry;
  }
  if (at == data_bytes) return "";
  return "bytes " + std::to_string(at) + " to " + std::to_string(data_bytes) +
         " of the data belong to no tensor";
}

}  // namespace

Result<SafetensorsHeader> parse_safetensors_header(std::span<const char> text,
                                                   std::uint64_t data_bytes) {
  using Failure = Result<SafetensorsHeader>;
  if (text.empty() || text.front() != '{') {
    return Failure::failure("the header does not start with '{'; not a safetensors file");
  }
  // The JSON library takes a zero byte for the end of its input.
  const auto zero = std::find(text.begin(), text.end(), '\0');
  if (zero != text.end()) {
    return Failure::failure("the header is not valid JSON at byte " +
                            std::to_string(zero - text.begin() + 1));
  }
  HeaderEvents events;
  if (!json::sax_parse(text.begin(), text.end(), &events)) {
    return Failure::failure(events.problem.empty() ? "the header is not valid JSON"
                                                   : events.problem);
  }
  auto& entries = events.header.entries;
  for (const SafetensorsEntry& entry : entries) {
    std::string problem = check_entry(entry, data_bytes);
    if (!problem.empty()) return Failure::failure(std::move(problem));
  }
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  std::string problem = check_tiling(entries, data_bytes);
  if (!problem.empty()) return Failure::failure(std::move(problem));
  return std::move(events.header);
}

}  // namespace attn::files
