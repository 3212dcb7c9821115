// The comparator: the tolerance of docs/semantics.md per row. A NaN fails every comparison.
#pragma once

#include <attn/tensor.hpp>
#include <string>
#include <vector>

namespace attn::harness {

// One output of a call. All values are row-major in the order of `shape`; a row is the last
// dimension.
struct Comparands {
  std::string name;
  std::vector<std::int64_t> shape;
  DType dtype = DType::f32;  // type of the output
  bool in_double = false;    // the problem computes in f64
  std::vector<double> actual;
  std::vector<double> expected;   // float64, not rounded
  std::vector<double> naive;      // in the same precision, see naive.hpp
  std::vector<double> magnitude;  // one per row
  // For products with 16-bit operands: the operands' type and the effect of their rounding, per
  // row.
  DType operands = DType::none;
  std::vector<double> deviation;
  std::vector<double> flushed;
  // A visible NaN or infinity was planted: lse must then only be non-finite.
  bool has_planted = false;
};

struct Comparison {
  bool passed = false;
  double worst_ratio = 0.0;  // error / tolerance; infinite where only equality is accepted
  double worst_error = 0.0;  // over finite elements
  std::string message;       // empty if passed
};

Comparison compare(const Comparands& x);
// The tolerance of each row, computed from everything except `actual`. Throws Error if the naive
// evaluation itself is wrong.
std::vector<double> row_tolerances(const Comparands& x);

// Properties of a row in addition to its values.
struct RowFacts {
  double naive_error = 0.0;
  double largest = 0.0;  // of |expected|
  double magnitude = 0.0;
  double deviation = 0.0;
  double flushed = 0.0;
};

// Tolerance of one row: 2 x naive_error + floor.
//
// floor = 2 u(output) max|expected| + 4 u(f32) magnitude + max(smallest(output), 2^-110), where u
// is the unit roundoff. Term 1: naive and backend each round once to the output type (twice for
// accumulate), and in short rows 2 x naive_error can be 0 by chance. Term 2: an f32 evaluation in
// another order (tiles, rescaling, base 2, FMA) rounds each term and each score. If the sum
// cancels, its error is a few units of the size of the terms (naive.hpp), not of the sum. The naive
// error of a row that one or two keys dominate does not show this. Term 3: below the normal range
// roundings are absolute, and p may be flushed to 0. A row without terms (empty, past a length) has
// magnitude 0 and must be exact. f64: 1e-12 relative to the larger of the two sizes.
//
// Tensor cores with 16-bit operands: floor also contains 6 deviation + flushed, both 0 otherwise.
// An element is a sum over j of operand_j x_j (P and v for o; P and dout for dv; dS and k or q for
// dq and dk). Rounding multiplies an operand by 1 + e, |e| <= u16. A kernel rounds P relative to
// the running maximum and with its own scaling, the naive evaluation relative to the row's maximum.
// So their errors are two independent draws from one distribution, and the naive draw bounds the
// other only as a sample does. If e is uniform in [-u16, u16] (variance u16^2 / 3) and independent,
// the variance of the sum is u16^2 / 3 sum (operand_j x_j)^2. In a row of few elements the naive
// draw can be almost 0 by chance, so the floor adds six standard deviations. (A sum of one term is
// wrong by at most sqrt(3) of them.) Operands below the type's normal range have an absolute error
// of half its smallest value; flushed is that times sum |x_j| over these. Every kernel rounds an
// f32 dout before the product, so the naive error already contains that error.
//
// f8 on CUDA: P is rounded to e4m3 after a scale of 2^5, and magnitude is 2^13 times that of f32,
// because the sums of products have 14 bits (naive.cpp, sum_error).
double row_tolerance(DType dtype, bool in_double, const RowFacts& row);
// Upper limit of naive_error; a larger one means that the naive evaluation is wrong. A term's
// operands are rounded at most twice (dout, then dS).
double naive_limit(DType dtype, bool in_double, const RowFacts& row, DType operands = DType::none);

}  // namespace attn::harness
