// Writing outputs: rounding, accumulation and the option `nonfinite = zero`.
#pragma once

#include <attn/arguments.hpp>
#include <attn/problem.hpp>
#include <cstdint>

#include "reference/elements.hpp"

namespace attn::reference {

class Results {
 public:
  Results(const Problem& problem, const Arguments& arguments)
      : problem_(problem), arguments_(arguments) {}

  // One element of o.
  void write_output(const TensorView& view, std::int64_t position, double value);
  // One element of a gradient: added to what is there when the problem accumulates. Read and add
  // are in float64; rounded once.
  void write_gradient(const TensorView& view, std::int64_t position, double value);
  // Zeroes a whole gradient, unless the problem accumulates.
  void clear_gradient(const TensorView& view);

  // Adds the number of replaced elements to the caller's counter.
  void finish();

 private:
  const Problem& problem_;
  const Arguments& arguments_;
  std::uint32_t replaced_ = 0;
};

}  // namespace attn::reference
