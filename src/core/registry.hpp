// Registry: which backend runs a call, and why the others don't.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/backend.hpp"

namespace attn::core {

// In order of preference.
using Backends = std::span<const Backend* const>;

// The call to be planned.
struct PlanRequest {
  Pass pass;
  const Problem& problem;
  Access access;
  const Executor& executor;
};

// What a call requires. `forced` names the one backend to use; empty = the first that
// supports the call.
struct Demand {
  std::string_view forced;
  Device device = Device::host;
  // Null (merge, rope): any usable backend of the device.
  const PlanRequest* request = nullptr;
};

struct Answer {
  const Backend* backend = nullptr;  // null: choose() found none
  bool can = false;
  std::string reason;  // why not, or the device that it runs on
  PlanPointer plan;    // set if `can`, and the demand has a request
};

// The answer of the first backend that supports the call.
Answer choose(Backends backends, const Demand& demand);
// Every backend's answer, in order.
std::vector<Answer> ask_all(Backends backends, const Demand& demand);
// "cuda: ...; webgpu: ...": why choose() found none.
std::string reasons(Backends backends, const Demand& demand);

const Backend* find(Backends backends, std::string_view name);
// "cuda, webgpu, cpu, reference"
std::string names(Backends backends);

}  // namespace attn::core
