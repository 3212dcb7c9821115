// Verify: compares the results of a measured call with the float64 reference on sampled rows and
// keys, under the tolerance of docs/semantics.md.
#pragma once

#include <string>

#include "bench/cells.hpp"
#include "bench/inputs.hpp"

namespace attn::bench {

struct Error {
  std::string problem;   // empty, or which element is wrong by how much
  double max_abs = 0.0;  // largest absolute error seen
  // Largest error / (naive error + one rounding + one deviation if operands were rounded).
  double ratio_to_naive = 0.0;
  int rows = 0;  // number of rows compared
};

// Checks the outputs in inputs.arguments after the call under test. The backward's check also needs
// the forward to have run, and uses its o and lse as inputs. `operands`: see harness/naive.hpp.
Error verify(const Cell& cell, const Inputs& inputs, DType operands);

}  // namespace attn::bench
