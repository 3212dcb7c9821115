// Writing outputs: see results.hpp.
#include "reference/results.hpp"

#include <cmath>

namespace attn::reference {

void Results::write_output(const TensorView& view, std::int64_t position, double value) {
  write(view, position, value);
  // Tested after rounding: a value that overflows in the output's type is not finite either.
  if (problem_.nonfinite_zero && !std::isfinite(read(view, position))) {
    write(view, position, 0.0);
    ++replaced_;
  }
}

void Results::write_gradient(const TensorView& view, std::int64_t position, double value) {
  write_output(view, position, problem_.accumulate ? read(view, position) + value : value);
}

void Results::clear_gradient(const TensorView& view) {
  if (!problem_.accumulate) fill(view, 0.0);
}

void Results::finish() {
  if (problem_.nonfinite_zero && arguments_.nonfinite_count.given()) {
    add_to_counter(arguments_.nonfinite_count, replaced_);
  }
}

}  // namespace attn::reference
