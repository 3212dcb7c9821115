// Runs one case and compares all outputs with the float64 reference, elementwise, under the
// tolerance of docs/semantics.md. It also checks that no other memory was written. `attn check`,
// the tests and the benchmark's verification use it.
#pragma once

#include <attn/attn.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "case.hpp"
#include "device.hpp"
#include "inputs.hpp"

namespace attn::harness {

struct CheckReport {
  bool passed = false;
  bool skipped = false;      // no usable backend supports it; message says why
  std::string message;       // the failure: tensor, index, both values, share of wrong elements
  double worst_ratio = 0.0;  // largest error / tolerance over all elements; passed means <= 1
  double worst_error = 0.0;  // largest absolute error
  std::string backend;       // the backend that ran
  std::string kernel;
  std::int64_t q_tiles = 0;  // number of query tiles of the plan that ran
  std::int64_t kv_tiles = 0;
  bool device_lost = false;  // every further call fails, so later cases show nothing
};

// Never throws for a failing case: errors of the call under test become a failed report. With a
// device, the call uses device memory (mirror.hpp) and the device's stream, else host memory.
// `asked`: the backend that the context forces; a skipped case then reports only that backend's
// reason. Empty: all.
CheckReport run_case(Context& context, const Case& c, DeviceQueue* device = nullptr,
                     const std::string& asked = {});

// For callers that run a case elsewhere: fills a backward's inputs o and lse with the reference's.
void give_forward(const Case& c, Inputs& to);
// The expected output: the reference's values, and the tolerance of each row (the last dimension).
// Non-finite values must be equal.
struct Expected {
  std::string name;
  std::vector<double> values;
  std::vector<double> tolerances;
};
// In the order of OutputSet::views. Throws Error.
std::vector<Expected> expected_of(const Case& c);

}  // namespace attn::harness
