// Where the tensors of a case or a benchmark are: "host", "cuda" (the first device) or "cuda:1".
#pragma once

#include <attn/tensor.hpp>
#include <cstdint>
#include <string>

namespace attn::cases {

struct Place {
  Device device = Device::host;
  std::int32_t ordinal = 0;
  bool operator==(const Place&) const = default;
};

// Throws Error (invalid_argument).
Place parse_place(const std::string& text);
std::string to_string(const Place& place);
// The place that is asked for; empty: where the backend of this name works.
Place place_of(const std::string& text, const std::string& backend);

}  // namespace attn::cases
