// Runs one case and compares everything it wrote with the float64 reference, elementwise, under the
// tolerance of docs/semantics.md; also checks what must not have been touched. Used by `attn
// check`, the tests and the benchmark's verification.
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
  bool skipped = false;      // no usable backend does it; message says why
  std::string message;       // what failed: tensor, index, both values, share of failures
  double worst_ratio = 0.0;  // largest error / tolerance over all elements; passed means <= 1
  double worst_error = 0.0;  // largest absolute error
  std::string backend;       // who ran
  std::string kernel;
  std::int64_t q_tiles = 0;  // of the plan that ran
  std::int64_t kv_tiles = 0;
  bool device_lost = false;  // it answers every call with an error now: later cases tell nothing
};

// Never throws on a failing case; errors of the call under test become a failed report. With a
// device the call is made on memory of it (mirror.hpp), on its stream; else on the host's. `asked`:
// the backend that the context asks for, whose reason alone a skipped case tells; empty: all.
CheckReport run_case(Context& context, const Case& c, DeviceQueue* device = nullptr,
                     const std::string& asked = {});

// For those who run a case elsewhere: gives a backward the o and lse that it starts from, the
// reference's.
void give_forward(const Case& c, Inputs& to);
// And what an output should be: the reference's values, and how far those of each row (the last
// dimension) may be off; where a value is not finite, equality is asked for.
struct Expected {
  std::string name;
  std::vector<double> values;
  std::vector<double> tolerances;
};
// In the order of OutputSet::views. Throws Error.
std::vector<Expected> expected_of(const Case& c);

}  // namespace attn::harness
