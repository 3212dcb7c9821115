// The constant shared_entries of kernels that read biases and masks.
#pragma once

#include <attn/problem.hpp>

namespace attn::cuda {

// Sequences share entries of the bias or mask. A constant, for to find an entry takes registers
// that many kernels lack (kernels/shared/score_entries.cuh).
inline bool has_shared_entries(const Problem& p) {
  return p.bias.per_entry > 1 || p.mask.per_entry > 1;
}

}  // namespace attn::cuda
