// Covering: a few kernels of many, for compilers that are slow.
#pragma once

#include <vector>

#include "webgpu/host/pipelines.hpp"

namespace attn::webgpu::test {

// A few kernels of `all` that, together with `chosen`, give each entry point every constant with
// every value that it has in `all`, or with the least and largest value if there are many (counts
// of tiles).
std::vector<KernelSpec> covering(const std::vector<KernelSpec>& all,
                                 const std::vector<KernelSpec>& chosen);

}  // namespace attn::webgpu::test
