// Compares what a run wrote with what was expected: the largest error relative to the tensor's
// largest value.
#pragma once

#include <attn/tensor.hpp>
#include <string>

#include "files/tensor.hpp"

namespace attn::cli {

struct TensorComparison {
  std::string name;
  std::string against;  // "reference", or the file
  std::string problem;  // why they could not be compared; else empty
  bool passed = false;
  double relative_error = 0.0;  // largest |actual - expected| / largest |expected|, finite elements
  double tolerance = 0.0;
  std::int64_t elements = 0;
  std::int64_t failed = 0;    // elements off by more than the tolerance, or not finite alike
  std::int64_t rows = 0;      // along the last dimension; of lse: elements
  std::int64_t nan_rows = 0;  // with a NaN where NaN is expected, too: nothing was compared there
  std::string worst;          // "[0, 3, 1, 7]: 0.125, expected 0.25"; empty without elements
};

// NaN and infinities must stand at the same places. Any float types.
TensorComparison compare(const files::FileTensor& actual, const files::FileTensor& expected,
                         double tolerance);

// What rounding leaves, relative to the largest value: 2e-6 with f32 (the bar for f32 results held
// against float64 ones), four units of rounding with 16 bits, 1e-12 with f64; of the wider ones for
// the types given.
double tolerance_of(DType input, DType output);

}  // namespace attn::cli
