// A naive evaluation of a case in the precision that a backend works in (f32; f64 for f64 inputs):
// a whole row of scores at a time, sums in the order of the indices, outputs rounded once. Its
// error against the reference is the yardstick of docs/semantics.md, "Tolerance". It shares no code
// with the CPU backend.
#pragma once

#include <string>
#include <vector>

#include "case.hpp"
#include "inputs.hpp"

namespace attn::cases {

struct NaiveOutput {
  std::string name;            // as in Arguments
  std::vector<double> values;  // row-major, of the output's type
  // For each row (last dimension): the largest sum of magnitudes of the terms that an element of
  // the row is made of, each times 1 + the size of its score (|score|, or a quarter of scale |q|
  // |k| where the dot product cancels). Rounding the terms, and the scores in their exponents, is
  // what no evaluation in this precision avoids, even where the sum itself cancels.
  std::vector<double> magnitude;
};

// `old` holds what the outputs are added to (accumulate), in the order of `outputs`' views.
std::vector<NaiveOutput> naive(const Case& c, const Inputs& inputs, const OutputSet& old);

}  // namespace attn::cases
