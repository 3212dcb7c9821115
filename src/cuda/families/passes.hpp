// Kernels of kernels/passes/ that several families use.
#pragma once

#include "core/divide_up.hpp"
#include "cuda/host/plan.hpp"
#include "cuda/kernels/passes/uncovered_rows.cuh"

namespace attn::cuda {

// Rows of packed queries that belong to no sequence get o = 0 and lse = -inf.
inline void add_uncovered_rows(CudaPlan& plan, const Problem& p) {
  if (p.layout_q != Layout::packed) return;
  plan.add("passes/uncovered_rows.cu", "attn_uncovered_rows", device::uncovered_rows::kThreads,
           core::divide_up(p.total_q, device::uncovered_rows::kRows));
}

}  // namespace attn::cuda
