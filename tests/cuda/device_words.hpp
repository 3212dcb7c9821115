// The words of CUDA C++ that kernels/shared/sequence.cuh uses, so that the host compiles it and
// tests device code against core's visibility. Functions of a warp or block are declared only:
// nothing here calls them.
#pragma once

#include <algorithm>

#define __device__
#define __forceinline__ inline

// NOLINTBEGIN: names of the language
using std::max;
using std::min;

struct dim3 {
  unsigned x = 0;
};
extern dim3 threadIdx;
int __reduce_min_sync(unsigned mask, int value);
int __reduce_max_sync(unsigned mask, int value);
void __syncthreads();
// NOLINTEND
