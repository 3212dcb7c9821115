// Elementwise comparison in f64.
#include "cli/compare.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include "files/convert.hpp"

namespace attn::cli {
namespace {

std::span<const double> doubles(const files::OwnedTensor& tensor) {
  return {reinterpret_cast<const double*>(tensor.memory.data()),
          tensor.tensor.data.size() / sizeof(double)};
}

std::vector<std::int64_t> index_of(std::int64_t linear, const std::vector<std::int64_t>& shape) {
  std::vector<std::int64_t> index(shape.size());
  for (std::size_t d = shape.size(); d-- > 0;) {
    index[d] = linear % shape[d];
    linear /= shape[d];
  }
  return index;
}

}  // namespace

TensorComparison compare(const files::FileTensor& actual, const files::FileTensor& expected,
                         double tolerance) {
  TensorComparison out;
  out.name = actual.name;
  out.tolerance = tolerance;
  if (actual.shape != expected.shape) {
    out.problem = "written " + files::describe(actual) + ", expected " + files::describe(expected);
    return out;
  }
  const auto a64 = files::convert(actual, "F64");
  const auto e64 = files::convert(expected, "F64");
  if (!a64 || !e64) {
    out.problem = a64 ? e64.error() : a64.error();
    return out;
  }
  const auto a = doubles(*a64);
  const auto e = doubles(*e64);
  double largest = 0.0;
  for (const double x : e) {
    if (std::isfinite(x)) largest = std::max(largest, std::fabs(x));
  }
  const std::size_t row_size =
      actual.name == "lse" || actual.shape.empty() || actual.shape.back() == 0
          ? 1
          : static_cast<std::size_t>(actual.shape.back());
  std::size_t last_nan_row = a.size();
  double worst_error = -1.0;
  std::size_t worst = 0;
  for (std::size_t n = 0; n < a.size(); ++n) {
    if (std::isnan(a[n]) && std::isnan(e[n]) && n / row_size != last_nan_row) {
      last_nan_row = n / row_size;
      ++out.nan_rows;
    }
    double error = std::numeric_limits<double>::infinity();
    if (a[n] == e[n] || (std::isnan(a[n]) && std::isnan(e[n]))) {
      error = 0.0;
    } else if (std::isfinite(a[n]) && std::isfinite(e[n]) && largest > 0.0) {
      error = std::fabs(a[n] - e[n]) / largest;
    }
    if (!(error <= tolerance)) ++out.failed;
    if (error > worst_error) {
      worst_error = error;
      worst = n;
    }
  }
  out.rows = static_cast<std::int64_t>(a.size() / row_size);
  out.elements = static_cast<std::int64_t>(a.size());
  out.relative_error = std::max(worst_error, 0.0);
  out.passed = out.failed == 0;
  if (!a.empty()) {
    out.worst =
        fmt::format("[{}]: {:.9g}, expected {:.9g}",
                    fmt::join(index_of(static_cast<std::int64_t>(worst), actual.shape), ", "),
                    a[worst], e[worst]);
  }
  return out;
}

double tolerance_of(DType input, DType output) {
  const auto of = [](DType dtype) {
    switch (dtype) {
      case DType::f64: return 1e-12;
      case DType::f32: return 2e-6;
      case DType::f16: return 4 * 0x1p-11;
      case DType::bf16: return 4 * 0x1p-8;
      case DType::f8e4m3: return 4 * 0x1p-4;
      default: return 4 * 0x1p-3;
    }
  };
  return std::max(of(input), of(output));
}

}  // namespace attn::cli
