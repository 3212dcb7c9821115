// Integer division that rounds up, for values that are not negative.
#pragma once

#include <cstdint>

namespace attn::core {

constexpr std::int64_t divide_up(std::int64_t value, std::int64_t by) {
  return (value + by - 1) / by;
}
// Rounds up to a multiple of `step`.
constexpr std::int64_t round_up(std::int64_t value, std::int64_t step) {
  return divide_up(value, step) * step;
}

}  // namespace attn::core
