// Operations other than attention, as dispatches.
#pragma once

#include <string>
#include <vector>

#include "dry_run.hpp"
#include "harness/inputs.hpp"

namespace attn::webgpu::test {

struct Operation {
  std::string name;
  harness::TensorSet tensors;
  DryRun run;
  std::vector<Output> outputs;  // from the reference
};

// Rotary embeddings, merges and a merge's gradient, always as many and in the same order: small, on
// tensors of this type (statistics and partial results are f32). Throws Error.
std::vector<Operation> operations(DType dtype, const DeviceFacts& facts);

}  // namespace attn::webgpu::test
