// Access: how kernels may load the rows of a call's tensors.
#pragma once

#include <attn/arguments.hpp>
#include <attn/problem.hpp>
#include <cstdint>

namespace attn::core {

// In ascending order: tensors that allow one access also allow those before it.
enum class Access : std::uint8_t {
  element,  // one element at a time
  vector,   // 16 bytes at a time; a tile's rows within 2^31 bytes
  // By CUDA's Tensor Memory Accelerator: loads and stores of q, k, v, o and their gradients, loads
  // of bias and mask, stores of dbias. The forward's scale is positive, or a score modifier applies
  // it.
  tma,
};

const char* to_string(Access access);

// The best access that the problem's types and dimensions allow, whatever the tensors. Queries
// without tensors (explain, workspace_bytes) assume it.
Access best_access(Pass pass, const Problem& problem);

// What the address and strides of one tensor [batch, len, heads, dim] or [total, heads, dim] allow.
Access access_of_rows(const TensorView& view);

// What a call's addresses and strides allow. A pure function of addresses, strides, sizes, types,
// the origin of dropout and the sign of the scale. It reads no tensor's data, and the call need not
// be validated yet.
Access access_of(Pass pass, const Problem& problem, const Arguments& arguments);

}  // namespace attn::core
