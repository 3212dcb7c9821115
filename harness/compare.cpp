// Compares rows of actual, expected and naive values; see compare.hpp.
#include "compare.hpp"

#include <algorithm>
#include <array>
#include <attn/attn.hpp>
#include <cmath>
#include <cstdio>
#include <limits>

#include "naive.hpp"
#include "values.hpp"

namespace attn::harness {
namespace {

// Contribution of terms with p = exp(score - lse) below the normal range of f32.
constexpr double kFlushed = 0x1p-110;

std::string short_text(double x) {
  std::array<char, 40> text{};
  std::snprintf(text.data(), text.size(), "%.9g", x);
  return text.data();
}

std::string index_text(const std::vector<std::int64_t>& shape, std::size_t linear) {
  std::string text;
  auto rest = static_cast<std::int64_t>(linear);
  for (std::size_t dim = shape.size(); dim-- > 0;) {
    text = std::to_string(rest % shape[dim]) + (text.empty() ? "" : ", ") + text;
    rest /= shape[dim];
  }
  return "[" + text + "]";
}

std::size_t width_of(const Comparands& x) {
  return static_cast<std::size_t>(x.shape.empty() ? 1 : std::max<std::int64_t>(x.shape.back(), 1));
}

// Compares a value that is not finite or should not be finite.
bool same_kind(double actual, double expected, bool any_nonfinite) {
  if (std::isfinite(actual) || std::isfinite(expected)) return false;
  if (any_nonfinite) return true;
  if (std::isnan(expected)) return std::isnan(actual);
  return actual == expected;
}

}  // namespace

double row_tolerance(DType dtype, bool in_double, const RowFacts& row) {
  if (in_double) return 1e-12 * std::max(row.largest, row.magnitude);
  if (row.magnitude == 0.0) return 2.0 * row.naive_error;
  return 2.0 * row.naive_error + 2.0 * unit_roundoff(dtype) * row.largest +
         4.0 * unit_roundoff(DType::f32) * row.magnitude + std::max(smallest(dtype), kFlushed) +
         6.0 * row.deviation + row.flushed;
}

double naive_limit(DType dtype, bool in_double, const RowFacts& row, DType operands) {
  if (in_double) return 1e-10 * std::max(row.largest, row.magnitude);
  const double of_terms = operands == DType::none ? 0x1p-12 : 2.0 * operand_unit(operands);
  return 4.0 * unit_roundoff(dtype) * row.largest + of_terms * row.magnitude +
         std::max(smallest(dtype), kFlushed) + row.flushed;
}

std::vector<double> row_tolerances(const Comparands& x) {
  const std::size_t count = x.expected.size();
  const std::size_t width = width_of(x);
  const std::size_t rows = (count + width - 1) / width;
  const bool rounds = x.operands != DType::none;
  if (x.naive.size() != count || x.magnitude.size() != rows ||
      (rounds && x.deviation.size() != rows) || (rounds && x.flushed.size() != rows)) {
    throw Error(ErrorCode::internal, x.name + ": sizes differ");
  }
  std::vector<double> tolerances;
  for (std::size_t begin = 0; begin < count; begin += width) {
    const std::size_t number = begin / width;
    RowFacts row;
    for (std::size_t n = begin; n < begin + width; ++n) {
      if (!std::isfinite(round_to(x.dtype, x.expected[n]))) continue;
      row.largest = std::max(row.largest, std::fabs(x.expected[n]));
      const double error = std::fabs(x.naive[n] - x.expected[n]);
      if (std::isnan(error) || error > row.naive_error) row.naive_error = error;
    }
    // No tolerance is known if a planted NaN reaches all terms of a row.
    const bool known = x.magnitude[number] > 0.0 || !x.has_planted;
    row.magnitude = known ? x.magnitude[number] : 8.0 * row.largest;
    if (rounds) row.deviation = x.deviation[number];
    if (rounds) row.flushed = x.flushed[number];
    const double limit = naive_limit(x.dtype, x.in_double, row, x.operands);
    if (!(row.naive_error <= limit)) {
      throw Error(ErrorCode::internal, x.name + ": the naive evaluation itself is off by " +
                                           short_text(row.naive_error) + " in the row of " +
                                           index_text(x.shape, begin) + ", at most " +
                                           short_text(limit) + " expected");
    }
    tolerances.push_back(row_tolerance(x.dtype, x.in_double, row));
  }
  return tolerances;
}

Comparison compare(const Comparands& x) {
  Comparison result;
  const std::size_t count = x.expected.size();
  const std::size_t width = width_of(x);
  std::vector<double> tolerances;
  try {
    tolerances = row_tolerances(x);
  } catch (const Error& error) {
    result.message = error.what();
    result.worst_ratio = std::numeric_limits<double>::infinity();
    return result;
  }
  if (x.actual.size() != count) {
    result.message = x.name + ": sizes differ";
    return result;
  }
  std::size_t failures = 0;
  std::size_t worst_at = 0;
  for (std::size_t n = 0; n < count; ++n) {
    const double expected = round_to(x.dtype, x.expected[n]);
    double ratio = 0.0;
    if (std::isfinite(expected) && std::isfinite(x.actual[n])) {
      const double error = std::fabs(x.actual[n] - x.expected[n]);
      result.worst_error = std::max(result.worst_error, error);
      if (error != 0.0) ratio = error / tolerances[n / width];
    } else if (!same_kind(x.actual[n], expected, x.has_planted && x.name == "lse")) {
      ratio = std::numeric_limits<double>::infinity();
    }
    if (!(ratio <= 1.0)) ++failures;
    if (!(ratio <= result.worst_ratio)) {
      result.worst_ratio = ratio;
      worst_at = n;
    }
  }
  result.passed = failures == 0;
  if (failures > 0) {
    result.message = x.name + index_text(x.shape, worst_at) + " = " +
                     short_text(x.actual[worst_at]) + ", expected " +
                     short_text(x.expected[worst_at]) + " within " +
                     short_text(tolerances[worst_at / width]) + "; " + std::to_string(failures) +
                     " of " + std::to_string(count) + " elements fail";
  }
  return result;
}

}  // namespace attn::harness
