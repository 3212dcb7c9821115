// Launch constants and parameters of passes/merge.cu, for the host and the kernels.
#pragma once
#include "shared/arguments.cuh"

namespace attn::device::merge {

inline constexpr int kThreads = 256;
inline constexpr int kLines = 32;  // lines per block; a line is a row of one head of one sequence

// Sizes of o, [batch, rows, heads, dim]. A packed tensor counts as one sequence.
struct Sizes {
  int batch = 0;
  int rows = 0;
  int heads = 0;
  int dim = 0;
};

// Statistics (lse, dlse) are rows of one f32. A null base means that a tensor is not given.
struct Params {
  StridedTensor o1, lse1, o2, lse2;
  StridedTensor o, lse;
  Sizes sizes;
};

struct BackwardParams {
  StridedTensor o1, lse1, o2, lse2, o, dout, dlse;
  StridedTensor dout1, dlse1, dout2, dlse2;
  Sizes sizes;
};

}  // namespace attn::device::merge
