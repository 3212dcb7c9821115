// What kernels know of a call's cache: its pages, rows to append, factors of 8-bit keys and values.
#pragma once

#include <attn/arguments.hpp>
#include <attn/problem.hpp>

#include "cuda/families/family.hpp"
#include "cuda/kernels/passes/append_rows.cuh"

namespace attn::cuda::sm80 {

inline constexpr const char* kAppendEntry = "attn_append_rows";

// Adds the kernel that appends, which runs before the one that attends, if there are new rows.
void add_append(CudaPlan& plan, const Problem& p);

device::Cache cache_of(const Problem& p, const Arguments& tensors);
// From descale_k or descale_v.
device::Descale descale_of(const TensorView& view);

}  // namespace attn::cuda::sm80
