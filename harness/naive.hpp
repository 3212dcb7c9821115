// A naive evaluation of a case in a backend's precision (f32; f64 for f64 inputs): a complete row
// of scores at a time, sums in index order, outputs rounded once. If the backend multiplies 16-bit
// operands on tensor cores, this evaluation rounds the same operands to that type: P (relative to
// the row's largest score in the forward, normalised in the backward), dS, an f32 dout, q and k
// after the rotary embedding, and converted 8-bit k and v. Sums stay f32. The tolerance of
// docs/semantics.md is a multiple of its error against the reference. It shares no code with any
// backend.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "case.hpp"
#include "inputs.hpp"

namespace attn::harness {

struct NaiveOutput {
  std::string name;            // the Arguments member's name
  std::vector<double> values;  // row-major, rounded to the output's type
  // Per row (last dimension): the maximum over its elements of the sum of the magnitudes of the
  // element's terms, each times 1 + the size of its score (|score|, or a quarter of scale |q| |k|
  // if the dot product cancels). No evaluation in this precision avoids rounding the terms and the
  // scores in their exponents, even if the sum cancels.
  std::vector<double> magnitude;
  // Per row, the maximum over its elements (0 if operands are not rounded): the standard deviation
  // caused by rounding operands, and the largest error of operands below the type's normal range,
  // where roundings are absolute. See compare.hpp.
  std::vector<double> deviation;
  std::vector<double> flushed;
};

// `old`: the values that outputs are added to (accumulate), in the order of `outputs`' views.
// `operands`: the type that these operands are rounded to; none = they stay in working precision.
// f32 stands for tf32, to which q, k, v and dout are rounded too.
std::vector<NaiveOutput> naive(const Case& c, const Inputs& inputs, const OutputSet& old,
                               DType operands = DType::none);

// The type that the planned kernels round P and dS to for their products; none = they don't.
DType operand_type(const Problem& problem, Device device, const PlanSummary& plan);
// Unit roundoff of operands rounded to that type.
double operand_unit(DType operands);

}  // namespace attn::harness
