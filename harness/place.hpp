// The device that a case or a benchmark runs on: "host", "cuda" (the first device), "cuda:1" or
// "webgpu" (the process's device, see docs/webgpu.md).
#pragma once

#include <attn/tensor.hpp>
#include <cstdint>
#include <string>

namespace attn::harness {

struct Place {
  Device device = Device::host;
  std::int32_t ordinal = 0;
  bool operator==(const Place&) const = default;
};

// Throws Error (invalid_argument).
Place parse_place(const std::string& text);
std::string to_string(const Place& place);
// Parses a place; empty = the device of the backend with this name. Throws Error (invalid_argument)
// if the place is webgpu and the backend does not run there.
Place place_of(const std::string& text, const std::string& backend);

// The device of a call's tensors: for WebGPU the host, because its backend copies host tensors.
Device device_of_tensors(const Place& place);
// The backend that a context for this place forces, given the requested one (empty: none).
std::string backend_for(const Place& place, const std::string& backend);

}  // namespace attn::harness
