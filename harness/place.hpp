// Where a case or a benchmark runs: "host", "cuda" (the first device), "cuda:1" or "webgpu" (the
// process's device, see docs/webgpu.md).
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
// The place that is asked for; empty: where the backend of this name works. Throws Error
// (invalid_argument) where a backend that does not work on WebGPU is asked for there.
Place place_of(const std::string& text, const std::string& backend);

// The device of the tensors that a call there takes: WebGPU's backend copies those of the host.
Device device_of_tensors(const Place& place);
// The backend that a context for calls there asks for, where `backend` is asked for (empty: none).
std::string backend_for(const Place& place, const std::string& backend);

}  // namespace attn::harness
