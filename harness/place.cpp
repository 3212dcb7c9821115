// Implements place.hpp.
#include "place.hpp"

#include <attn/context.hpp>
#include <charconv>

namespace attn::harness {

Place parse_place(const std::string& text) {
  const std::string kind = text.substr(0, text.find(':'));
  if (text == "host") return {};
  if (text == "cuda") return {Device::cuda, 0};
  if (text == "webgpu") return {Device::webgpu, 0};
  Place place{Device::cuda, -1};
  if (kind == "cuda") {
    const char* begin = text.data() + kind.size() + 1;
    const char* end = text.data() + text.size();
    const auto read = std::from_chars(begin, end, place.ordinal);
    if (read.ec != std::errc{} || read.ptr != end) place.ordinal = -1;
  }
  if (place.ordinal < 0) {
    throw Error(ErrorCode::invalid_argument,
                "device: found '" + text + "'; accepted host, cuda, cuda:N or webgpu");
  }
  return place;
}

std::string to_string(const Place& place) {
  const std::string name = attn::to_string(place.device);
  return place.device == Device::cuda ? name + ":" + std::to_string(place.ordinal) : name;
}

Place place_of(const std::string& text, const std::string& backend) {
  const bool by_backend = text.empty() && (backend == "cuda" || backend == "webgpu");
  const Place place = parse_place(!text.empty() ? text : by_backend ? backend : "host");
  if (place.device == Device::webgpu && !backend.empty() && backend != "webgpu") {
    throw Error(ErrorCode::invalid_argument,
                "backend, on device webgpu: found '" + backend + "'; accepted webgpu");
  }
  return place;
}

Device device_of_tensors(const Place& place) {
  return place.device == Device::webgpu ? Device::host : place.device;
}

std::string backend_for(const Place& place, const std::string& backend) {
  return place.device == Device::host || !backend.empty() ? backend : attn::to_string(place.device);
}

}  // namespace attn::harness
