// A naive evaluation of a case in the precision that a backend works in (f32; f64 for f64 inputs):
// a whole row of scores at a time, sums in the order of the indices, outputs rounded once. Where
// the backend's products are those of tensor cores with 16-bit operands, so are these: P, relative
// to the row's largest score in the forward and normalised in the backward, dS and an f32 dout are
// rounded to that type before they are multiplied; sums stay f32. Its error against the reference
// is the yardstick of docs/semantics.md, "Tolerance". It shares no code with any backend.
#pragma once

#include <string>
#include <vector>

#include "case.hpp"
#include "inputs.hpp"

namespace attn::harness {

struct NaiveOutput {
  std::string name;            // as in Arguments
  std::vector<double> values;  // row-major, of the output's type
  // For each row (last dimension): the largest sum of magnitudes of the terms that an element of
  // the row is made of, each times 1 + the size of its score (|score|, or a quarter of scale |q|
  // |k| where the dot product cancels). Rounding the terms, and the scores in their exponents, is
  // what no evaluation in this precision avoids, even where the sum itself cancels.
  std::vector<double> magnitude;
  // For each row, the largest of its elements' (0 where operands are not rounded): the standard
  // deviation that rounding the operands gives, and the most that those of them can be off that are
  // below the type's normal range, whose roundings are absolute. See compare.hpp.
  std::vector<double> deviation;
  std::vector<double> flushed;
};

// `old` holds what the outputs are added to (accumulate), in the order of `outputs`' views.
// `operands`: the type that P and dS are rounded to, none for those of the working precision.
std::vector<NaiveOutput> naive(const Case& c, const Inputs& inputs, const OutputSet& old,
                               DType operands = DType::none);

// The operands' type of the backend for a device.
DType operand_type(const Problem& problem, Device device);

}  // namespace attn::harness
