// The comparator: the tolerance of docs/semantics.md, per row, written so that a NaN fails.
#pragma once

#include <attn/tensor.hpp>
#include <string>
#include <vector>

namespace attn::harness {

// One output of a call. All values are row-major in the order of `shape`; a row is its last
// dimension.
struct Comparands {
  std::string name;
  std::vector<std::int64_t> shape;
  DType dtype = DType::f32;  // of the output
  bool in_double = false;    // the problem computes in f64
  std::vector<double> actual;
  std::vector<double> expected;   // float64, not rounded
  std::vector<double> naive;      // same precision, see naive.hpp
  std::vector<double> magnitude;  // one a row
  // Where products have 16-bit operands: their type, and what their rounding does, one a row.
  DType operands = DType::none;
  std::vector<double> deviation;
  std::vector<double> flushed;
  // A visible NaN or infinity was put somewhere: lse is then only promised to be non-finite.
  bool has_planted = false;
};

struct Comparison {
  bool passed = false;
  double worst_ratio = 0.0;  // error / tolerance; infinite where nothing but equality would do
  double worst_error = 0.0;  // of finite elements
  std::string message;       // empty when passed
};

Comparison compare(const Comparands& x);
// The tolerance of each row, from all but `actual`. Throws Error where the naive evaluation itself
// is off.
std::vector<double> row_tolerances(const Comparands& x);

// What is known of a row beside its values.
struct RowFacts {
  double naive_error = 0.0;
  double largest = 0.0;  // of |expected|
  double magnitude = 0.0;
  double deviation = 0.0;
  double flushed = 0.0;
};

// Tolerance of one row: 2 x naive_error + floor.
//
// floor = 2 u(output) max|expected| + 4 u(f32) magnitude + max(smallest(output), 2^-110), u the
// unit roundoff. The first term: naive and backend each round once to the output type (1 u each,
// twice for accumulate), and 2 x naive_error can be 0 by luck in short rows. The second: an f32
// evaluation in another order (tiles, rescaling, base 2, FMA) rounds each of its terms and each
// score, so its error is a few units of the terms' size (naive.hpp), not of their sum's, where the
// sum cancels; the naive error of a row that one or two keys dominate says nothing about that. The
// last: below the normal range roundings are absolute, and p may be flushed to 0. A row without
// terms (empty, past a length) has magnitude 0 and must be exact. f64: 1e-12 of the larger size.
//
// Tensor cores with 16-bit operands: floor also has 6 deviation + flushed, both 0 elsewhere. An
// element is a sum over j of operand_j x_j (P and v for o; P and dout for dv; dS and k or q for dq
// and dk). Rounding an operand changes it by the factor 1 + e, |e| <= u16, and which e comes out is
// luck: a kernel rounds P relative to the maximum so far and scaled in its own way, the naive
// evaluation relative to the row's, so their errors are two draws from one distribution, and the
// naive draw bounds the other one only as a sample does. With e even in [-u16, u16], of variance
// u16^2 / 3, and independent, the draw's variance is u16^2 / 3 sum (operand_j x_j)^2. A row of a
// few elements may draw almost 0 by luck, hence six standard deviations beside it; a sum of one
// term is off by at most sqrt(3) of them. Operands below the normal range of the type are off by
// half its smallest value, whatever their own: flushed is half of it times sum |x_j| over these.
// The f32 dout is rounded before it is multiplied, by every kernel alike, so that the naive error
// has the same error in it.
double row_tolerance(DType dtype, bool in_double, const RowFacts& row);
// What naive_error may be at most; beyond it the yardstick itself is wrong. Operands are rounded at
// most twice in a term (dout, then dS).
double naive_limit(DType dtype, bool in_double, const RowFacts& row, DType operands = DType::none);

}  // namespace attn::harness
