// Compares the outputs of a run with expected ones: the largest error relative to the tensor's
// largest value.
#pragma once

#include <attn/tensor.hpp>
#include <string>

#include "files/tensor.hpp"

namespace attn::cli {

struct TensorComparison {
  std::string name;
  std::string against;  // "reference", or the file
  std::string problem;  // why they could not be compared; empty if they were
  bool passed = false;
  double relative_error = 0.0;  // largest |actual - expected| / largest |expected|, finite elements
  double tolerance = 0.0;
  std::int64_t elements = 0;
  std::int64_t failed = 0;    // error above the tolerance, or unequal NaN or infinity
  std::int64_t rows = 0;      // along the last dimension; lse: elements
  std::int64_t nan_rows = 0;  // rows with a NaN in both, where nothing was compared
  std::string worst;          // "[0, 3, 1, 7]: 0.125, expected 0.25"; empty without elements
};

// NaN and infinities must be at the same positions. Accepts any float types.
TensorComparison compare(const files::FileTensor& actual, const files::FileTensor& expected,
                         double tolerance);

// The error that rounding may cause, relative to the largest value: 2e-6 with f32 (the limit for
// f32 results compared with float64), four unit roundoffs with 16 and 8 bits, 1e-12 with f64.
// Returns the larger one of both types.
double tolerance_of(DType input, DType output);

}  // namespace attn::cli
