// Registry: which backend runs a call, and why the others don't.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/backend.hpp"

namespace attn::core {

// In order of preference.
using Backends = std::span<const Backend* const>;

// What is asked for. `forced` names the one backend to use; empty = the first that can.
struct Demand {
  std::string_view forced;
  Device device = Device::host;
  // The problem; without one (merge, rope) any usable backend of the device will do.
  std::optional<Pass> pass;
  const Problem* problem = nullptr;
  std::int32_t ordinal = 0;  // of the device
};

struct Answer {
  const Backend* backend = nullptr;
  bool can = false;
  std::string reason;  // why not, or on what it runs
};

// The first that can; null when none can. Allocates only where some backend says no.
const Backend* choose(Backends backends, const Demand& demand);
// Every backend's answer, in order.
std::vector<Answer> ask_all(Backends backends, const Demand& demand);
// "cuda: ...; webgpu: ...": why choose() found none.
std::string reasons(Backends backends, const Demand& demand);

const Backend* find(Backends backends, std::string_view name);
// "cuda, webgpu, cpu, reference"
std::string names(Backends backends);

}  // namespace attn::core
