// Covering: a few kernels of many, for compilers that are slow.
#pragma once

#include <vector>

#include "webgpu/host/pipelines.hpp"

namespace attn::webgpu::test {

// Of `all`, so few more than `chosen` that each entry point has every constant with every value
// that it has in `all`; where those are many (counts of tiles), with the least and the largest.
std::vector<KernelSpec> covering(const std::vector<KernelSpec>& all,
                                 const std::vector<KernelSpec>& chosen);

}  // namespace attn::webgpu::test
