// Places as text; see place.hpp.
#include "place.hpp"

#include <attn/context.hpp>
#include <charconv>

namespace attn::cases {

Place parse_place(const std::string& text) {
  const std::string kind = text.substr(0, text.find(':'));
  if (text == "host") return {};
  if (text == "cuda") return {Device::cuda, 0};
  Place place{Device::cuda, -1};
  if (kind == "cuda") {
    const char* begin = text.data() + kind.size() + 1;
    const char* end = text.data() + text.size();
    const auto read = std::from_chars(begin, end, place.ordinal);
    if (read.ec != std::errc{} || read.ptr != end) place.ordinal = -1;
  }
  if (place.ordinal < 0) {
    throw Error(ErrorCode::invalid_argument,
                "device: found '" + text + "'; accepted host, cuda or cuda:N");
  }
  return place;
}

std::string to_string(const Place& place) {
  if (place.device == Device::host) return "host";
  return attn::to_string(place.device) + (":" + std::to_string(place.ordinal));
}

Place place_of(const std::string& text, const std::string& backend) {
  return parse_place(!text.empty() ? text : backend == "cuda" ? "cuda" : "host");
}

}  // namespace attn::cases
