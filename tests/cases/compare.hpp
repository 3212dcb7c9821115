// The comparator: the tolerance of docs/semantics.md, per row, written so that a NaN fails.
#pragma once

#include <attn/tensor.hpp>
#include <string>
#include <vector>

namespace attn::cases {

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
double row_tolerance(DType dtype, bool in_double, double naive_error, double largest,
                     double magnitude);
// What naive_error may be at most; beyond it the yardstick itself is wrong.
double naive_limit(DType dtype, bool in_double, double largest, double magnitude);

}  // namespace attn::cases
