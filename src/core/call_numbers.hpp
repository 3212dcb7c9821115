// CallNumbers: the numbers of a call with defaults filled in, resolved once for all backends.
#pragma once

#include <attn/arguments.hpp>
#include <attn/problem.hpp>
#include <cstdint>

#include "core/philox.hpp"
#include "core/visibility.hpp"

namespace attn::core {

struct CallNumbers {
  double scale = 1.0;    // default 1 / sqrt(dim_qk)
  double softcap = 0.0;  // 0: off
  Band band;
  std::int64_t heads_per_kv = 1;  // query heads that share a key head

  // Dropout keeps a probability if its random byte is below the threshold; 256: off. The Philox key
  // and the counter's last word come from the seed and offset that the host can read, by value or
  // through host pointers. Values in device memory are not read here.
  std::uint32_t dropout_threshold = 256;
  PhiloxKey philox_key{};
  std::uint32_t philox_offset = 0;
  Origin origin{};  // heads_q is not 0
};

// For validated calls. Follows pointers of seed and offset only where the tensors are on the host.
CallNumbers numbers_of(const Problem& problem, const Arguments& arguments);

}  // namespace attn::core
