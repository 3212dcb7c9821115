// The constant shared_entries of kernels that read bias and mask.
#pragma once

#include <attn/problem.hpp>

namespace attn::cuda {

// Whether sequences share entries of the bias or mask. A compile-time constant, because computing
// the entry needs registers that many kernels lack (kernels/shared/score_entries.cuh).
inline bool has_shared_entries(const Problem& p) {
  return p.bias.per_entry > 1 || p.mask.per_entry > 1;
}

}  // namespace attn::cuda
