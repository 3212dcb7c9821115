// The numbers of a call; see call_numbers.hpp.
#include "core/call_numbers.hpp"

#include <cmath>

namespace attn::core {
namespace {

std::uint64_t read(const Value<std::uint64_t>& value, bool on_host) {
  return value.device != nullptr && on_host ? *value.device : value.host;
}

}  // namespace

CallNumbers numbers_of(const Problem& p, const Arguments& a) {
  CallNumbers numbers;
  numbers.scale = a.scale ? *a.scale : 1.0 / std::sqrt(static_cast<double>(p.dim_qk));
  numbers.softcap = p.softcap ? a.softcap : 0.0;
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
