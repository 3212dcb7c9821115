// CallNumbers: the numbers of a call with defaults filled in, resolved once for all backends.
#pragma once

#include <attn/arguments.hpp>
#include <attn/problem.hpp>
#include <cstdint>

#include "core/philox.hpp"
#include "core/visibility.hpp"

namespace attn::core {

struct CallNumbers {
  double scale = 1.0;    // 1 / sqrt(dim_qk) where the call gives none
  double softcap = 0.0;  // 0: off
  Band band;
  std::int64_t heads_per_kv = 1;  // query heads that share a key head

  // Dropout keeps a probability where its byte is below the threshold; 256: off. The Philox key and
  // the counter's last word are those of the seed and offset that the host can read: numbers given
  // by host pointers included, numbers in device memory left at 0.
  std::uint32_t dropout_threshold = 256;
  PhiloxKey philox_key{};
  std::uint32_t philox_offset = 0;
  Origin origin{};  // heads_q filled in
};

// For validated calls. Follows pointers of seed and offset only where the tensors are on the host.
CallNumbers numbers_of(const Problem& problem, const Arguments& arguments);

}  // namespace attn::core
