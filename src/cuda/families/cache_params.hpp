// Kernel parameters of a KV cache: pages, rows to append, descale factors of 8-bit keys and values.
#pragma once

#include <attn/arguments.hpp>
#include <attn/problem.hpp>

#include "cuda/families/family.hpp"
#include "cuda/kernels/passes/append_rows.cuh"

namespace attn::cuda {

inline constexpr const char* kAppendEntry = "attn_append_rows";

// If there are new rows, adds the kernel that appends them. Must be called before the main kernel
// is added.
void add_append(CudaPlan& plan, const Problem& p);

device::Cache cache_of(const Problem& p, const Arguments& tensors);
// From descale_k or descale_v.
device::Descale descale_of(const TensorView& view);

}  // namespace attn::cuda
