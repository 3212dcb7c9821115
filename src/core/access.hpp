// Access: how kernels may load the rows of a call's tensors.
#pragma once

#include <attn/arguments.hpp>
#include <attn/problem.hpp>
#include <cstdint>

namespace attn::core {

// In ascending order: tensors that allow one allow those before it too.
enum class Access : std::uint8_t {
  element,  // one element at a time
  vector,   // 16 bytes at a time; a tile's rows within 2^31 bytes
  // By the Tensor Memory Accelerator of CUDA, into and out of every tensor of rows, from bias and
  // mask, and into dbias; and the forward's scale is positive or multiplied in a score modifier.
  tma,
};

const char* to_string(Access access);

// The best access that the problem's types and dimensions allow, whatever the tensors. Questions
// without tensors (explain, workspace_bytes) assume it.
Access best_access(Pass pass, const Problem& problem);

// What the address and strides of one tensor [batch, len, heads, dim] or [total, heads, dim] allow.
Access access_of_rows(const TensorView& view);

// What a call's addresses and strides allow. A pure function of a validated call that reads no
// tensor: addresses, strides, sizes, types, the origin of dropout and the sign of the scale.
Access access_of(Pass pass, const Problem& problem, const Arguments& arguments);

}  // namespace attn::core
