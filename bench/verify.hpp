// Verify: holds what a measured call wrote against the float64 reference, a sample of rows and keys
// at a time, under the tolerance of docs/semantics.md.
#pragma once

#include <string>

#include "bench/cells.hpp"
#include "bench/inputs.hpp"

namespace attn::bench {

struct Error {
  std::string problem;   // empty, or which element is wrong by how much
  double max_abs = 0.0;  // largest absolute error seen
  // Largest error / (naive error + one rounding and, of rounded operands, one deviation).
  double ratio_to_naive = 0.0;
  int rows = 0;  // compared
};

// Of the outputs in inputs.arguments, after the call under test (for the backward: after the
// forward too, whose o and lse it then takes as given). `operands`: see harness/naive.hpp.
Error verify(const Cell& cell, const Inputs& inputs, DType operands);

}  // namespace attn::bench
