// The numbers of a call; see call_numbers.hpp.
#include "core/call_numbers.hpp"

#include <algorithm>
#include <cmath>

namespace attn::core {
namespace {

std::uint64_t read(const Value<std::uint64_t>& value, bool on_host) {
  return value.device != nullptr && on_host ? *value.device : value.host;
}

// Backends divide by the softcap and multiply by it in the type of their arithmetic, and subnormal
// numbers may be flushed to 0. A softcap beyond these bounds has the scores of one at the bound, up
// to rounding: no cap, or scores of 0.
double bounded_softcap(double softcap, DType arithmetic) {
  const double most = arithmetic == DType::f64 ? 1e100 : 1e20;
  return std::clamp(softcap, 1.0 / most, most);
}

// A scale that f32 rounds to infinity would make a product of 0 NaN. Backends also multiply it by
// log2(e).
double bounded_scale(double scale, DType arithmetic) {
  constexpr double kMost = 1e38;
  return arithmetic == DType::f64 ? scale : std::clamp(scale, -kMost, kMost);
}

}  // namespace

CallNumbers numbers_of(const Problem& p, const Arguments& a) {
  CallNumbers numbers;
  numbers.scale = a.scale ? bounded_scale(*a.scale, p.statistics_type())
                          : 1.0 / std::sqrt(static_cast<double>(p.dim_qk));
  numbers.softcap = p.softcap ? bounded_softcap(a.softcap, p.statistics_type()) : 0.0;
  numbers.band = band_of(p, explicit_diagonal(a));
  numbers.heads_per_kv = p.heads_q / p.heads_kv;
  numbers.origin = a.origin;
  if (numbers.origin.heads_q == 0) numbers.origin.heads_q = p.heads_q;
  if (p.dropout) {
    const bool on_host = a.q.device == Device::host;
    const std::uint64_t offset = read(a.offset, on_host);
    numbers.dropout_threshold = dropout_threshold(a.dropout_p);
    numbers.philox_key = dropout_key(read(a.seed, on_host), offset);
    numbers.philox_offset = static_cast<std::uint32_t>(offset);
  }
  return numbers;
}

}  // namespace attn::core
